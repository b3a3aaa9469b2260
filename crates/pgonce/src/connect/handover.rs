//! A session that is ready, handed to a client that wants to start it itself.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::startup::Session;
use super::stream::Transport;

/// The connection of a session that is ready. To a client that starts a session it is a server that trusts everybody:
/// the startup message goes nowhere, and is answered with what the server said when the session was started.
pub(super) struct Handover {
    transport: Transport,
    /// What is still to be read before the transport.
    answer: BytesMut,
    /// The startup message, as far as it has been written.
    startup: Option<BytesMut>,
}

impl Handover {
    pub(super) fn new(session: Session) -> Handover {
        let mut answer = BytesMut::new();
        let mut message = |tag: u8, parts: &[&[u8]]| {
            let length: usize = parts.iter().map(|part| part.len()).sum();
            answer.put_u8(tag);
            // The server's own messages, each of which had a length of 32 bits.
            answer.put_u32(length as u32 + 4);
            parts.iter().for_each(|part| answer.put_slice(part));
        };
        message(b'R', &[&[0; 4]]);
        for (name, value) in &session.parameters {
            message(b'S', &[name.as_bytes(), b"\0", value.as_bytes(), b"\0"]);
        }
        if let Some(key) = session.backend_key {
            message(b'K', &[&key.process_id.to_be_bytes(), &key.secret_key.to_be_bytes()]);
        }
        message(b'Z', &[b"I"]);
        let (transport, frames) = session.into_parts();
        answer.unsplit(frames.into_rest());
        Handover { transport, answer, startup: Some(BytesMut::new()) }
    }
}

impl AsyncRead for Handover {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.answer.has_remaining() {
            let length = this.answer.len().min(buffer.remaining());
            buffer.put_slice(&this.answer.split_to(length));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.transport).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Handover {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let Some(startup) = &mut this.startup else { return Pin::new(&mut this.transport).poll_write(cx, bytes) };
        // The message starts with its length.
        let length = startup.first_chunk().map_or(4, |length| u32::from_be_bytes(*length) as usize);
        let taken = length.saturating_sub(startup.len()).min(bytes.len());
        startup.put_slice(&bytes[..taken]);
        if startup.first_chunk().is_some_and(|length| u32::from_be_bytes(*length) as usize <= startup.len()) {
            this.startup = None;
        }
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().transport).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().transport).poll_shutdown(cx)
    }
}
