mod literal;
mod random;
