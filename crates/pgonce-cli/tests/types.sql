-- Values at the edges of every built-in type that a column can have, and of the types that users make.
--
-- `edges(since, type, expressions...)` notes SQL expressions of one type, and from which major version of the source
-- AND the target on they exist. What reads this file makes the tables. It runs in a session of its own; the types that
-- users make (below "own types") are made on both sides first.

CREATE TEMPORARY TABLE edge (id int GENERATED ALWAYS AS IDENTITY, since int, type text, value text);
CREATE FUNCTION pg_temp.edges(since int, type text, VARIADIC expressions text[]) RETURNS void LANGUAGE sql AS
    'INSERT INTO edge (since, type, value) SELECT $1, $2, e FROM unnest($3) WITH ORDINALITY AS u (e, n) ORDER BY n';

-- Truth and numbers: C3, C4.
SELECT pg_temp.edges(14, 'boolean', 'true', 'false');
SELECT pg_temp.edges(14, 'smallint', '0', '-32768', '32767', '-1');
SELECT pg_temp.edges(14, 'integer', '0', '-2147483648', '2147483647', '-1', '10');
SELECT pg_temp.edges(14, 'bigint', '0', '-9223372036854775808', '9223372036854775807', '2129020', '4294967296');
SELECT pg_temp.edges(14, 'numeric', $$'NaN'$$, $$'Infinity'$$, $$'-Infinity'$$, '1e131071', '-1e131071', '1e-16383',
    '0.00000000000000006938893903907228', '1.10', '1.1', '1.100000', '0', '0.0', '0.0000000000', '-0.00', '10000',
    '9999', '99999999.99999999', '1e4', '1e-4', '100000000000000000000000000000000', '123456789012345678901234567890.12',
    $$round(2::numeric / 3, 200)$$, $$power(2::numeric, 500)$$);
SELECT pg_temp.edges(14, 'numeric(10, 2)', '1.1', '-0.00', '99999999.99', '-99999999.99', $$'NaN'$$, '0.005');
SELECT pg_temp.edges(14, 'numeric(1000)', $$repeat('9', 1000)$$, '0');
SELECT pg_temp.edges(15, 'numeric(3, -2)', '12345', '-99900', '49', $$'NaN'$$);
SELECT pg_temp.edges(15, 'numeric(3, 5)', '0.00999', '-0.00001');
SELECT pg_temp.edges(14, 'double precision', $$'-216237.00000035969'$$, $$'-0'$$, $$'0'$$, $$'NaN'$$,
    $$'Infinity'::float8 - 'Infinity'::float8$$, $$'Infinity'$$, $$'-Infinity'$$, $$'5e-324'$$, $$'-5e-324'$$,
    $$'2.2250738585072014e-308'$$, $$'2.225073858507201e-308'$$, $$'1.7976931348623157e308'$$,
    $$'-1.7976931348623157e308'$$, '0.1', '0.1::float8 + 0.2::float8', '1e15', '1e16', '123456789012345680', '1e22',
    $$'9007199254740993'$$, $$'4.35'$$, '1::float8 / 3');
SELECT pg_temp.edges(14, 'real', $$'1.17549435e-38'$$, $$'3.4028235e38'$$, $$'-3.4028235e38'$$, $$'-0'$$, $$'1e-45'$$,
    $$'NaN'$$, $$'Infinity'::float4 - 'Infinity'::float4$$, $$'Infinity'$$, $$'-Infinity'$$, '0.1', '16777217', '1e6',
    '1e7', $$'8.5899346e9'$$, '1::float4 / 3');
SELECT pg_temp.edges(14, 'money', '-12345.67', '0.01', $$'-92233720368547758.08'$$, $$'92233720368547758.07'$$, '0');

-- Texts: C6.
SELECT pg_temp.edges(14, 'text', $$E'tab\t nl\n cr\r bs\\ q'' dq" \b\f\v\x01\x7f'$$, $$E'\\.'$$, $$E'a\n\\.\nb'$$,
    $$E'\\N'$$, $$''$$, $$' '$$, $$'  both  '$$, 'chr(1114111)', $$'NULL'$$, $$E'\\x'$$, $$E'\\'$$, $$E'\\\\'$$,
    $$E'\r\n'$$, $$E'\n'$$, $$E'\t'$$, $$'"'$$, $$''''$$, $$'{a,b}'$$, $$'(a,b)'$$, $e$'$1 $$ %s :x ?'$e$,
    $$U&'e\0301 n\0303 \00e9 \00df \20ac'$$, $$U&'\+01F469\200D\+01F469\200D\+01F467 \202Ertl\FEFF'$$,
    $$U&'\0080\00A0\2028\FFFD\FFFE'$$, $$repeat('long ', 3000)$$,
    $$(SELECT string_agg(chr(i), '') FROM generate_series(1, 1024) i)$$);
SELECT pg_temp.edges(14, 'character varying', $$'ab  '$$, $$''$$, $$E'\\'$$);
SELECT pg_temp.edges(14, 'character varying(6)', $$'ab  '$$, $$''$$, $$'abcdef'$$, $$'      '$$,
    $$U&'\00e9\20ac\+010FFFF\00df\00fc\00f6'$$);
SELECT pg_temp.edges(14, 'character(6)', $$'ab'$$, $$''$$, $$'abcdef'$$, $$' b'$$, $$U&'\20ac'$$, $$E'a\t'$$);
SELECT pg_temp.edges(14, 'character', $$'a'$$, $$''$$);
SELECT pg_temp.edges(14, 'bpchar', $$'ab   '$$, $$''$$, $$'   '$$, $$'no length at all'$$);
SELECT pg_temp.edges(14, 'name', $$'n'$$, $$repeat('n', 63)$$, $$''$$, $$'Mixed "case"'$$, $$repeat('é', 31)$$);
SELECT pg_temp.edges(14, '"char"', $$'x'$$, $$''$$, $$''''$$, $$E'\\'$$, $$' '$$, $$E'\n'$$);
SELECT pg_temp.edges(14, 'bytea',
    $$(SELECT string_agg(set_byte('x', 0, i), '' ORDER BY i) FROM generate_series(0, 255) i)$$, $$''$$,
    $$E'\\000'$$, $$E'\\\\'$$, $$E'\\x5c78'$$, $$E'\\xff'$$, $$decode(repeat('00', 5000), 'hex')$$);

-- Dates and times: C5.
SELECT pg_temp.edges(14, 'date', $$'infinity'$$, $$'-infinity'$$, $$'4713-01-01 BC'$$, $$'0001-12-31 BC'$$,
    $$'0001-01-01'$$, $$'10000-01-01'$$, $$'5874897-12-31'$$, $$'2000-02-29'$$, $$'1999-12-31'$$);
SELECT pg_temp.edges(14, 'timestamp without time zone', $$'infinity'$$, $$'-infinity'$$, $$'4713-01-01 00:00:00 BC'$$,
    $$'0044-03-15 12:00:00.000001 BC'$$, $$'294276-12-31 23:59:59.999999'$$, $$'10000-01-01 00:00:00'$$,
    $$'1999-12-31 23:59:59.999999'$$, $$'2000-01-01 00:00:00'$$, $$'2020-03-29 02:30:00'$$);
SELECT pg_temp.edges(14, 'timestamp(3) without time zone', $$'2020-01-01 00:00:00.1236'$$, $$'infinity'$$);
SELECT pg_temp.edges(14, 'timestamp with time zone', $$'infinity'$$, $$'-infinity'$$, $$'4713-01-01 00:00:00+00 BC'$$,
    $$'294276-12-31 23:59:59.999999+00'$$, $$'1890-01-01 00:00:00+00'$$, $$'10000-06-01 01:02:03.4+05:30'$$,
    $$'2020-10-25 02:30:00+02'$$, $$'2020-10-25 02:30:00+01'$$, $$'0001-01-01 00:00:00+15:59:59'$$);
SELECT pg_temp.edges(14, 'time without time zone', $$'24:00:00'$$, $$'00:00:00'$$, $$'00:00:00.000001'$$,
    $$'23:59:59.999999'$$);
SELECT pg_temp.edges(14, 'time(0) without time zone', $$'23:59:59.9'$$, $$'12:00'$$);
SELECT pg_temp.edges(14, 'time with time zone', $$'24:00:00+15:59:59'$$, $$'12:34:56.789-01:02:03'$$, $$'00:00-15:59'$$,
    $$'12:00+00'$$);
SELECT pg_temp.edges(14, 'interval', $$'-1 year 2 mons -3 days 04:05:06.000007'$$, $$'1 mon -1 days'$$,
    $$'178000000 years'$$, $$'-178000000 years'$$, $$'0'$$, $$'-00:00:00.000001'$$, $$'1 day -00:00:01'$$,
    $$'-1 mon +1 day -1 sec'$$, $$'30 days'$$, $$'1 mon'$$, $$'24:00:00'$$, $$'1 day'$$, $$'2562047788:00:54.775807'$$,
    $$'-2562047788:00:54.775807'$$);
SELECT pg_temp.edges(17, 'interval', $$'infinity'$$, $$'-infinity'$$);
SELECT pg_temp.edges(14, 'interval day to second(2)', $$'1 day 00:00:01.257'$$, $$'-1 day 1 sec'$$);
SELECT pg_temp.edges(14, 'interval year to month', $$'1 year -3 mons'$$);

-- Identifiers of things: C7.
SELECT pg_temp.edges(14, 'uuid', $$'00000000-0000-0000-0000-000000000000'$$,
    $$'ffffffff-ffff-ffff-ffff-ffffffffffff'$$, $$'{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}'$$);
SELECT pg_temp.edges(14, 'oid', '0', '4294967295', '2147483648');
SELECT pg_temp.edges(14, 'xid', $$'0'$$, $$'4294967295'$$, $$'3'$$);
SELECT pg_temp.edges(14, 'xid8', $$'0'$$, $$'18446744073709551615'$$, $$'4294967296'$$);
SELECT pg_temp.edges(14, 'cid', $$'0'$$, $$'4294967295'$$);
SELECT pg_temp.edges(14, 'tid', $$'(0,0)'$$, $$'(4294967295,65535)'$$, $$'(1,2)'$$);
SELECT pg_temp.edges(14, 'pg_lsn', $$'0/0'$$, $$'FFFFFFFF/FFFFFFFF'$$, $$'1/ABCDEF01'$$);
SELECT pg_temp.edges(14, 'txid_snapshot', $$'1:1:'$$, $$'10:20:10,14,15'$$);
SELECT pg_temp.edges(14, 'pg_snapshot', $$'1:1:'$$, $$'10:20:10,14,15'$$, $$'4294967299:4294967310:4294967300,4294967305'$$);
SELECT pg_temp.edges(14, 'regclass', $$'pg_catalog.pg_class'$$, $$'-'$$, $$'987654321'$$,
    $$'"Types; --"."Named like, this"'$$, $$'pg_catalog.pg_class_oid_index'$$);
SELECT pg_temp.edges(14, 'regtype', $$'integer'$$, $$'-'$$, $$'timestamp with time zone'$$, $$'"char"'$$, $$'text[]'$$,
    $$'"Types; --"."Mood"'$$, $$'"Types; --"."Mood"[]'$$, $$'987654321'$$);
SELECT pg_temp.edges(14, 'regproc', $$'pg_catalog.now'$$, $$'-'$$, $$'"Types; --".wrong'$$);
SELECT pg_temp.edges(14, 'regprocedure', $$'pg_catalog.abs(numeric)'$$, $$'-'$$, $$'"Types; --".wrong(text)'$$);
SELECT pg_temp.edges(14, 'regoper', $$'pg_catalog.|/'$$, $$'0'$$);
SELECT pg_temp.edges(14, 'regoperator', $$'pg_catalog.+(integer,integer)'$$, $$'0'$$, $$'pg_catalog.-(none,numeric)'$$);
SELECT pg_temp.edges(14, 'regnamespace', $$'pg_catalog'$$, $$'"Types; --"'$$, $$'-'$$);
SELECT pg_temp.edges(14, 'regrole', $$'postgres'$$, $$'-'$$, $$'987654321'$$);
SELECT pg_temp.edges(14, 'regcollation', $$'"C"'$$, $$'"default"'$$, $$'-'$$);
SELECT pg_temp.edges(14, 'regconfig', $$'simple'$$, $$'german'$$);
SELECT pg_temp.edges(14, 'regdictionary', $$'simple'$$, $$'german_stem'$$);
SELECT pg_temp.edges(14, 'aclitem', $$'postgres=arwdDxt/postgres'$$, $$'=r*/postgres'$$);
SELECT pg_temp.edges(14, 'refcursor', $$'a "cursor"'$$, $$''$$);
SELECT pg_temp.edges(14, 'int2vector[]', $$'{"1 2","3",NULL}'$$);
SELECT pg_temp.edges(14, 'int2vector', $$'1 2 -3'$$, $$''$$);
SELECT pg_temp.edges(14, 'oidvector', $$'1 4294967295'$$, $$''$$);

-- Documents: C2.
SELECT pg_temp.edges(14, 'json', $$E'{"a":1,\n  "a": 1.0 , "b":"\\u00e9 \\ud83d\\ude00"}'$$, $$' 1 '$$, $$'null'$$,
    $$'"null"'$$, $$'""'$$, $$E'"\\u0000"'$$, $$E'"\\n\\t\\\\ \\""'$$, $$E'[\n]'$$, $$'{}'$$, $$'1e400'$$,
    $$'{"": {"": []}}'$$);
SELECT pg_temp.edges(14, 'jsonb', $$'18446744073709551616'$$, $$'{"a":1.10,"a":2}'$$, $$'null'$$, $$'[1e3, -0.0, 1.0]'$$,
    $$E'"\\u00e9 \\ud83d\\ude00 \\n \\" \\\\ \\u0001"'$$, $$'""'$$, $$'{}'$$, $$'[]'$$, $$'{"b": 1, "a": 2, "aa": 3}'$$,
    $$'{"": {"": [null, true]}}'$$, '(SELECT jsonb_agg(i) FROM generate_series(1, 5000) i)');
SELECT pg_temp.edges(14, 'jsonpath', $$'$.a[*] ? (@ > 1)'$$, $$'strict $."x y"[0 to last]'$$,
    $$E'$ ? (@ like_regex "^a\\\\d" flag "i")'$$);
SELECT pg_temp.edges(14, 'xml', $$'<a>1</a><b/>'$$, $$'text only'$$, $$'<?xml version="1.0"?><a/>'$$,
    $$'<?xml version="1.0" encoding="UTF-8" standalone="yes"?><a/>'$$, $$''$$, $$E'<a b="&lt;&#10;">\n</a>'$$,
    $$'<![CDATA[<&]]>'$$, $$'<!-- -->'$$);
SELECT pg_temp.edges(14, 'tsvector', $$'a:1A,3 ''b c'':2'$$, $$''$$, $$E'''it''''s'' ''back\\\\slash'''$$,
    $$'a:16383'$$);
SELECT pg_temp.edges(14, 'tsquery', $$'a & !(b | c:*AB)'$$, $$''$$, $$'a <-> b <3> c'$$, $$E'''it''''s'''$$);

-- Networks and bits.
SELECT pg_temp.edges(14, 'inet', $$'192.168.0.1/24'$$, $$'192.168.0.1'$$, $$'::ffff:1.2.3.4'$$, $$'0.0.0.0/0'$$,
    $$'::/0'$$, $$'2001:db8::1/64'$$);
SELECT pg_temp.edges(14, 'cidr', $$'192.168.0.0/24'$$, $$'10.0.0.0/8'$$, $$'0.0.0.0/0'$$, $$'2001:db8::/32'$$);
SELECT pg_temp.edges(14, 'macaddr', $$'08:00:2b:01:02:03'$$, $$'ff:ff:ff:ff:ff:ff'$$);
SELECT pg_temp.edges(14, 'macaddr8', $$'08:00:2b:01:02:03:04:05'$$, $$'00:00:00:00:00:00:00:00'$$);
SELECT pg_temp.edges(14, 'bit(5)', $$B'10101'$$, $$B'00000'$$);
SELECT pg_temp.edges(14, 'bit', $$B'1'$$, $$B'0'$$);
SELECT pg_temp.edges(14, 'bit(64)', $$repeat('1', 64)$$, $$X'0123456789ABCDEF'$$);
SELECT pg_temp.edges(14, 'bit varying', $$B''$$, $$B'1'$$, $$B'00000000000000001'$$, $$repeat('10', 5000)$$);
SELECT pg_temp.edges(14, 'bit varying(5)', $$B''$$, $$B'10101'$$);

-- Geometry.
SELECT pg_temp.edges(14, 'point', $$'(0.1,-0)'$$, $$'(NaN,Infinity)'$$, $$'(5e-324,-1.7976931348623157e308)'$$,
    $$point('Infinity'::float8 - 'Infinity'::float8, 1)$$);
SELECT pg_temp.edges(14, 'line', $$'{1,-1,0.1}'$$, $$'{0,1,-Infinity}'$$);
SELECT pg_temp.edges(14, 'lseg', $$'[(0,-0),(1e-300,1)]'$$, $$'[(1,1),(1,1)]'$$);
SELECT pg_temp.edges(14, 'box', $$'(1,1),(0,-0)'$$, $$'(Infinity,1),(-Infinity,0)'$$);
SELECT pg_temp.edges(14, 'path', $$'[(0,0),(1,1),(2,0)]'$$, $$'((0,0),(1,1),(2,0))'$$, $$'[(0,-0)]'$$);
SELECT pg_temp.edges(14, 'polygon', $$'((0,0),(1e-300,1),(1,0))'$$, $$'((-0,NaN))'$$);
SELECT pg_temp.edges(14, 'circle', $$'<(0,-0),1>'$$, $$'<(1,1),0>'$$, $$'<(0,0),Infinity>'$$);

-- Ranges.
SELECT pg_temp.edges(14, 'int4range', $$'[1,5]'$$, $$'empty'$$, $$'(,)'$$, $$'[,5)'$$, $$'(1,)'$$, $$'[1,2147483647)'$$);
SELECT pg_temp.edges(14, 'int8range', $$'[1,5]'$$, $$'empty'$$, $$'[-9223372036854775808,)'$$);
SELECT pg_temp.edges(14, 'numrange', $$'[1.10,1.100]'$$, $$'(1,2)'$$, $$'[-Infinity,Infinity]'$$, $$'[NaN,NaN]'$$,
    $$'empty'$$);
SELECT pg_temp.edges(14, 'daterange', $$'[2020-01-01,infinity]'$$, $$'(,2020-01-01]'$$, $$'[-infinity,infinity)'$$);
SELECT pg_temp.edges(14, 'tsrange', $$'[2020-01-01,infinity]'$$, $$'(0044-03-15 BC,2020-01-01)'$$, $$'empty'$$);
SELECT pg_temp.edges(14, 'tstzrange', $$'[2020-01-01 00:00:00+00, infinity]'$$, $$'(,2020-01-01 00:00:00+05:30)'$$);
SELECT pg_temp.edges(14, 'int4multirange', $$'{[1,3), [5,7)}'$$, $$'{}'$$, $$'{(,)}'$$);
SELECT pg_temp.edges(14, 'int8multirange', $$'{[1,3), [5,)}'$$, $$'{}'$$);
SELECT pg_temp.edges(14, 'nummultirange', $$'{[1.10,1.1],(2,3)}'$$, $$'{}'$$);
SELECT pg_temp.edges(14, 'datemultirange', $$'{[2020-01-01,2020-01-03),(infinity,)}'$$);
SELECT pg_temp.edges(14, 'tsmultirange', $$'{[2020-01-01 00:00,2020-01-01 12:00:00.000001)}'$$, $$'{}'$$);
SELECT pg_temp.edges(14, 'tstzmultirange', $$'{[2020-01-01 00:00+00,2020-01-01 12:00+00)}'$$, $$'{}'$$);

-- Arrays of odd shapes: C1. An array of all the values of every type is made beside these.
SELECT pg_temp.edges(14, 'bigint[]', $$'[0:1]={7,8}'$$, $$'{}'$$, $$'{NULL,1}'$$, $$'[-2:-1][5:6]={{1,2},{3,NULL}}'$$,
    $$'{{{1}},{{2}}}'$$, $$'{NULL}'$$);
SELECT pg_temp.edges(14, 'text[]', $$'{{a,b},{c,d}}'$$, $$'{NULL,"NULL",""}'$$,
    $$ARRAY['a"b', E'c\\d', 'e,f', '{}', E'\t', ' ', 'null', E'\n', U&'\+010FFFF']$$, $$'[5:5]={""}'$$);
SELECT pg_temp.edges(14, 'character(3)[]', $$'{a,"b  ",""}'$$);
SELECT pg_temp.edges(14, 'character varying(3)[]', $$'{abc,"a b"}'$$);
SELECT pg_temp.edges(14, 'numeric(5, 1)[]', $$'{1.0,NaN,NULL}'$$);
SELECT pg_temp.edges(14, 'double precision[]', $$'{-0,NaN,5e-324}'$$, $$ARRAY['Infinity'::float8 - 'Infinity'::float8]$$);
SELECT pg_temp.edges(14, 'box[]', $$'{(1,1),(0,0);(2,2),(1,1)}'$$);
SELECT pg_temp.edges(14, 'bytea[]', $$ARRAY[E'\\x5c22', '']::bytea[]$$);

-- Own types. The schema has a name that wants quoting; C8.
SELECT pg_temp.edges(14, '"Types; --"."Mood"', $$'sad'$$, $$'OK'$$, $$'it''s "fine"'$$, $$''$$, $$'ünïcödé'$$,
    $$repeat('x', 63)$$);
SELECT pg_temp.edges(14, '"Types; --".smaller', '49', '-1');
SELECT pg_temp.edges(14, '"Types; --".code', $$'abcd'$$, $$''$$, $$'a  '$$);
SELECT pg_temp.edges(14, '"Types; --".padded', $$'ab'$$, $$''$$);
SELECT pg_temp.edges(14, '"Types; --".flags', $$B'101'$$);
SELECT pg_temp.edges(14, '"Types; --".price', '1.5', $$'NaN'$$);
SELECT pg_temp.edges(14, '"Types; --".list', $$'{1,NULL,49}'$$, $$'{}'$$, $$'[3:3]={1}'$$);
SELECT pg_temp.edges(14, '"Types; --".feeling', $$'OK'$$);
SELECT pg_temp.edges(14, '"Types; --".thing', $$'(1,"x,""y""")'$$, $$'(,)'$$);
SELECT pg_temp.edges(14, '"Types; --".inner', $$ROW(1, 'x,"y"')$$, $$ROW(NULL, '')$$, $$ROW(NULL, NULL)$$,
    $$ROW(2, E'\\ '' \t\n ()')$$);
SELECT pg_temp.edges(14, '"Types; --".outer', $$ROW(ROW(1, E'a "b" (c), \\d'), 'OK', 7, '{x,NULL}')$$,
    $$'(,,,)'$$, $$'("(,)",sad,1,{})'$$, $$'("(1,""NULL"")",,,"{""{"",NULL,""NULL""}")'$$);
SELECT pg_temp.edges(14, '"Types; --".single', $$ROW('')$$, $$ROW(NULL)$$, $$ROW('(,)')$$);
SELECT pg_temp.edges(14, '"Types; --".shrunk', $$ROW(1, 'a')$$);
SELECT pg_temp.edges(14, '"Types; --"."Named like, this"', $$ROW(1, '{sad}')$$, $$ROW(NULL, '{}')$$);
SELECT pg_temp.edges(14, '"Types; --".span', $$'[1.5,2.5)'$$, $$'empty'$$, $$'(,-0]'$$, $$'[NaN,NaN]'$$);
SELECT pg_temp.edges(14, '"Types; --".spans', $$'{[1.5,2.5),(3,)}'$$, $$'{}'$$);
SELECT pg_temp.edges(14, '"Types; --".words', $$'["a,b","c""d"]'$$, $$'[,"")'$$, $$'[" ",NULL]'$$);
SELECT pg_temp.edges(14, '"Types; --"."Mood"[]', $$ARRAY['OK', '', 'it''s "fine"', NULL]::"Types; --"."Mood"[]$$);
SELECT pg_temp.edges(14, '"Types; --".inner[]', $$ARRAY[ROW(1, 'x,"y"'), ROW(NULL, ''), NULL]::"Types; --".inner[]$$);
SELECT pg_temp.edges(14, '"Types; --".smaller[]', $$'{1,NULL,49}'$$);
SELECT pg_temp.edges(14, '"Types; --".list[]', $$ARRAY['{1,2}'::"Types; --".list, '{}', NULL]$$);

-- Extensions. They are in another schema on each side.
SELECT pg_temp.edges(14, 'hstore', $$'"a b"=>"c\"d", e=>NULL, f=>"NULL"'$$, $$''$$, $$'""=>""'$$);
SELECT pg_temp.edges(14, 'citext', $$'MiXed'$$, $$''$$, $$'ÄÖ'$$, $$' '$$);
SELECT pg_temp.edges(14, '"Types; --".email', $$'Me@Example'$$);
SELECT pg_temp.edges(14, 'ltree', $$'Top.Science.Astronomy'$$, $$''$$, $$'a_1.B'$$);
SELECT pg_temp.edges(14, 'lquery', $$'Top.*{1,2}.!a|b@'$$);
SELECT pg_temp.edges(14, 'ltxtquery', $$'a & !b*@'$$);
