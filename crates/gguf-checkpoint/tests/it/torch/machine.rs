//! Pickle machine, with one test for each family of opcodes.

use gguf_checkpoint::pickle::{Forbidden, Global, Id, Pickle, PickleError, Rebuild, Value, read};

use gguf_testkit::torch::{dict, global, int, pickle, text, tuple};

/// Value approximately as Python prints it; truncated if it contains itself.
fn show(pickle: &Pickle, id: Id, depth: usize) -> String {
    if depth == 0 {
        return "..".to_owned();
    }
    let list = |ids: &[Id]| ids.iter().map(|&id| show(pickle, id, depth - 1)).collect::<Vec<_>>().join(" ");
    match pickle.get(id) {
        Value::None => "None".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Long(bytes) => format!("long{bytes:?}"),
        Value::Text(text) => format!("{text:?}"),
        Value::Opaque => "_".to_owned(),
        Value::Tuple(items) => format!("({})", list(items)),
        Value::List(items) => format!("[{}]", list(items)),
        Value::Map(pairs) => {
            let pairs = pairs.iter().map(|&(key, value)| {
                format!("{}:{}", show(pickle, key, depth - 1), show(pickle, value, depth - 1))
            });
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(" "))
        }
        Value::Global(global) => format!("{global:?}"),
        Value::Persistent(id) => format!("#{}", show(pickle, *id, depth - 1)),
        Value::Rebuilt { by, args } => format!("{by:?}({})", list(args)),
    }
}

/// Value of a pickle without its STOP.
fn value(body: &[u8]) -> String {
    let bytes = [body, b".rest"].concat();
    let pickle = read(&bytes, 0).unwrap_or_else(|error| panic!("{body:?}: {error}"));
    assert_eq!(pickle.end(), body.len() + 1);
    show(&pickle, pickle.root(), 6)
}

fn error(body: &[u8]) -> PickleError {
    read(body, 100).map(|pickle| show(&pickle, pickle.root(), 6)).unwrap_err()
}

#[test]
fn numbers_and_constants() {
    for (body, expected) in [
        (&b"N"[..], "None"),
        (b"\x88", "true"),
        (b"\x89", "false"),
        (b"I01\n", "true"),
        (b"I00\n", "false"),
        (b"I-12\n", "-12"),
        (b"L34L\n", "34"),
        (b"J\xfe\xff\xff\xff", "-2"),
        (b"K\xff", "255"),
        (b"M\x01\x02", "513"),
        (b"\x8a\x00", "0"),
        (b"\x8a\x01\xff", "-1"),
        (b"\x8a\x02\xff\x00", "255"),
        (b"\x8b\x02\x00\x00\x00\x00\x80", "-32768"),
        (b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01", "long[0, 0, 0, 0, 0, 0, 0, 0, 1]"),
        (b"F1.5\n", "_"),
        (b"G\x3f\xf8\x00\x00\x00\x00\x00\x00", "_"),
    ] {
        assert_eq!(value(body), expected, "{body:?}");
    }
    for (body, expected) in [
        (&b"I1x\n"[..], "offset 100: not an integer of 64 bits"),
        (b"L99999999999999999999L\n", "offset 100: not an integer of 64 bits"),
        (b"I1", "offset 101: line without end"),
        (b"J\x00\x00", "offset 101: 4 bytes expected, 2 left"),
        (b"\x8b\xff\xff\xff\x7f", "offset 105: 2147483647 bytes expected, 0 left"),
    ] {
        assert_eq!(error(body).to_string(), expected, "{body:?}");
    }
}

#[test]
fn texts_and_bytes() {
    for (body, expected) in [
        (&b"X\x03\x00\x00\x00a\xc3\xa9"[..], "\"aé\""),
        (b"\x8c\x01a", "\"a\""),
        (b"\x8d\x01\x00\x00\x00\x00\x00\x00\x00a", "\"a\""),
        (b"Va\\u00e9\\U0001f600\\n\n", "\"aé😀\\\\n\""),
        (b"S'a\\x41\\'\\\\\\n'\n", "\"aA'\\\\\\n\""),
        (b"S\"b\"\n", "\"b\""),
        (b"U\x02a\xe9", "\"aé\""),
        (b"T\x01\x00\x00\x00\xe9", "\"é\""),
        (b"C\x02ab", "_"),
        (b"B\x01\x00\x00\x00a", "_"),
        (b"\x8e\x01\x00\x00\x00\x00\x00\x00\x00a", "_"),
        (b"\x96\x01\x00\x00\x00\x00\x00\x00\x00a", "_"),
    ] {
        assert_eq!(value(body), expected, "{body:?}");
    }
    for (body, expected) in [
        (&b"X\x01\x00\x00\x00\xff"[..], "offset 100: not valid UTF-8"),
        (b"X\xff\xff\xff\xffa", "offset 105: 4294967295 bytes expected, 1 left"),
        (b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "offset 109: 18446744073709551615 bytes expected, 0 left"),
        (b"S'a\n", "offset 100: not a quoted string"),
        (b"S'\\q'\n", "offset 100: not a quoted string"),
        (b"V\\ud800\n", "offset 100: not a line of Unicode"),
    ] {
        assert_eq!(error(body).to_string(), expected, "{body:?}");
    }
}

#[test]
fn containers() {
    for (body, expected) in [
        (&b")"[..], "()"),
        (b"(K\x01K\x02t", "(1 2)"),
        (b"N\x85", "(None)"),
        (b"K\x01K\x02\x86", "(1 2)"),
        (b"K\x01K\x02K\x03\x87", "(1 2 3)"),
        (b"]K\x01a(K\x02K\x03e", "[1 2 3]"),
        (b"(K\x01l", "[1]"),
        (b"}K\x01K\x02s(K\x03K\x04K\x05K\x06u", "{1:2 3:4 5:6}"),
        (b"(K\x01K\x02d", "{1:2}"),
        (b"\x8f(K\x01\x90", "_"),
        (b"(K\x01\x91", "_"),
        (b"]}K\x01Nsa", "[{1:None}]"),
    ] {
        assert_eq!(value(body), expected, "{body:?}");
    }
    for (body, expected) in [
        (&b"}(K\x01u"[..], "offset 104: nothing on the stack"),
        (b"]K\x01K\x02s", "offset 105: a dictionary expected, found a list"),
        (b"}K\x01a", "offset 103: a list expected, found a dictionary"),
        (b"](K\x01\x90", "offset 104: a set expected, found a list"),
        (b"K\x01\x86", "offset 102: nothing on the stack"),
        (b"t", "offset 100: no mark on the stack"),
    ] {
        assert_eq!(error(body).to_string(), expected, "{body:?}");
    }
}

#[test]
fn stack_and_memo() {
    for (body, expected) in [
        (&b"K\x01K\x020"[..], "1"),
        (b"K\x01(0", "1"),
        (b"K\x01(K\x02K\x031", "1"),
        (b"K\x012\x86", "(1 1)"),
        (b"K\x05q\x07h\x07\x86", "(5 5)"),
        (b"K\x05r\xff\xff\xff\x7fj\xff\xff\xff\x7f\x86", "(5 5)"),
        (b"K\x05p9\ng9\n\x86", "(5 5)"),
        (b"K\x05\x94K\x06\x94h\x00h\x01\x87", "(6 5 6)"),
        // A list that contains itself.
        (b"]q\x00h\x00a", "[[[[[[..]]]]]]"),
    ] {
        assert_eq!(value(body), expected, "{body:?}");
    }
    for (body, expected) in [
        (&b"h\x05"[..], "offset 100: memo slot 5 is not set"),
        (b"g-1\n", "offset 100: not the number of a memo slot"),
        (b"q\x00", "offset 100: nothing on the stack"),
        (b"N(2", "offset 102: nothing on the stack"),
        (b".", "offset 100: nothing on the stack"),
        (b"0", "offset 100: nothing on the stack"),
    ] {
        assert_eq!(error(body).to_string(), expected, "{body:?}");
    }
}

#[test]
fn frames_protocols_and_unknown_opcodes() {
    assert_eq!(value(b"\x80\x05\x95\x02\x00\x00\x00\x00\x00\x00\x00N"), "None");
    assert_eq!(
        error(b"\x95\xff\x00\x00\x00\x00\x00\x00\x00N.").to_string(),
        "offset 109: 255 bytes expected, 2 left"
    );
    assert_eq!(error(b"\x80\x06N.").to_string(), "offset 100: pickle protocol 6, at most 5 expected");
    assert_eq!(error(b"N").to_string(), "offset 101: pickle ends without STOP");
    assert_eq!(error(b"").to_string(), "offset 100: pickle ends without STOP");
    for (opcode, name) in [
        (0x82u8, " (EXT1)"),
        (0x83, " (EXT2)"),
        (0x84, " (EXT4)"),
        (b'i', " (INST)"),
        (b'o', " (OBJ)"),
        (0x97, " (NEXT_BUFFER)"),
        (0x98, " (READONLY_BUFFER)"),
        (0xff, ""),
        (0x00, ""),
    ] {
        assert_eq!(
            error(&[opcode, b'.']).to_string(),
            format!("offset 100: pickle opcode 0x{opcode:02x}{name} is not allowed")
        );
    }
}

#[test]
fn every_opcode_alone_ends_with_a_result_or_an_error() {
    for opcode in 0..=255u8 {
        for rest in [&b""[..], b".", b"\x00", b"\xff\xff\xff\xff\xff\xff\xff\xff", b"1\n.", b"a\nb\n."] {
            let _ = read(&[&[opcode][..], rest].concat(), 0);
            let _ = read(&[b"(NN}", &[opcode][..], rest].concat(), 0);
        }
    }
}

#[test]
fn names_are_allowed_one_by_one() {
    let name = |module: &str, name: &str| read(&[&global(module, name)[..], b"."].concat(), 0);
    let stack = [text("torch"), text("Size"), vec![0x93]].concat();
    assert_eq!(value(&stack), "Tuple");
    for (module, allowed) in [
        ("torch._utils", "_rebuild_tensor_v2"),
        ("torch", "FloatStorage"),
        ("torch.storage", "_FloatStorage"),
        ("torch.storage", "UntypedStorage"),
        ("torch.cuda", "HalfStorage"),
        ("torch", "float8_e4m3fn"),
        ("__builtin__", "set"),
        ("collections", "OrderedDict"),
        ("torch.nn.parameter", "Parameter"),
    ] {
        assert!(name(module, allowed).is_ok(), "{module}.{allowed}");
    }
    for (module, refused, why) in [
        ("os", "system", Forbidden::Other),
        ("builtins", "eval", Forbidden::Other),
        ("builtins", "getattr", Forbidden::Other),
        ("torch", "load", Forbidden::Other),
        ("torch.hub", "load", Forbidden::Other),
        ("torch._utils", "_import_dotted_name", Forbidden::Other),
        ("torch.storage", "float16", Forbidden::Other),
        ("torch", "_FloatStorage", Forbidden::Other),
        ("collections", "deque", Forbidden::Other),
        ("torch.nn.modules.linear", "Linear", Forbidden::Module),
        ("torch._utils", "_rebuild_qtensor", Forbidden::Quantized),
        ("torch._utils", "_rebuild_sparse_tensor", Forbidden::Sparse),
        ("torch._utils", "_rebuild_meta_tensor_no_storage", Forbidden::Meta),
        ("torch._utils", "_rebuild_wrapper_subclass", Forbidden::Subclass),
        ("torch._utils", "_rebuild_nested_tensor", Forbidden::Nested),
    ] {
        let expected = PickleError::Name { offset: 0, module: module.into(), name: refused.into(), why };
        assert_eq!(name(module, refused).unwrap_err(), expected);
    }
    assert_eq!(
        name("os\u{1b}[2J", "system").unwrap_err().to_string(),
        "offset 0: pickle wants `os\\u{1b}[2J.system`: not among the names that weights need; nothing was called"
    );
    assert_eq!(error(b"\x93").to_string(), "offset 100: nothing on the stack");
    assert_eq!(error(b"NN\x93").to_string(), "offset 102: text expected, found none");
}

#[test]
fn calls_become_descriptions() {
    let call = |module: &str, name: &str, args: Vec<u8>, opcode: &[u8]| {
        [global(module, name), args, opcode.to_vec()].concat()
    };
    let tensor = call("torch._utils", "_rebuild_tensor", tuple(&[int(1), int(2)]), b"R");
    for (body, expected) in [
        (call("collections", "OrderedDict", b")".to_vec(), b"R"), "{}"),
        (call("collections", "OrderedDict", b"]K\x01K\x02\x86a\x85".to_vec(), b"R"), "{1:2}"),
        (call("collections", "OrderedDict", b")".to_vec(), b"\x81"), "{}"),
        (call("collections", "OrderedDict", b")}".to_vec(), b"\x92"), "{}"),
        (call("collections", "defaultdict", tuple(&[global("builtins", "list")]), b"R"), "{}"),
        (call("builtins", "dict", tuple(&[dict(&[("a", int(1))])]), b"R"), "{\"a\":1}"),
        (call("torch", "Size", tuple(&[tuple(&[int(3)])]), b"R"), "(3)"),
        (call("builtins", "tuple", b"]K\x01a\x85".to_vec(), b"R"), "(1)"),
        (call("_codecs", "encode", tuple(&[text("x"), text("latin1")]), b"R"), "_"),
        (call("torch", "device", tuple(&[text("cpu")]), b"R"), "_"),
        (tensor.clone(), "Tensor(1 2)"),
        (
            call("torch._utils", "_rebuild_parameter", tuple(&[tensor.clone(), vec![0x88]]), b"R"),
            "Tensor(1 2)",
        ),
        (
            call(
                "torch._tensor",
                "_rebuild_from_type_v2",
                tuple(&[
                    global("torch._utils", "_rebuild_tensor_v2"),
                    global("torch", "Tensor"),
                    tuple(&[int(7)]),
                    dict(&[]),
                ]),
                b"R",
            ),
            "TensorV2(7)",
        ),
        // Attributes of a dictionary.
        ([&call("collections", "OrderedDict", b")".to_vec(), b"R")[..], b"}b"].concat(), "{}"),
    ] {
        assert_eq!(value(&body), expected);
    }
    for (body, expected) in [
        ([&tensor[..], b"}b"].concat(), "a dictionary expected, found a tensor"),
        (
            call("torch", "FloatStorage", b")".to_vec(), b"R"),
            "call of a name with other arguments that does not fit",
        ),
        (
            call("torch", "float16", b")".to_vec(), b"R"),
            "call of a name with other arguments that does not fit",
        ),
        (b"N)R".to_vec(), "call of none that does not fit"),
        (
            call("torch", "Size", b"N".to_vec(), b"R"),
            "call of a name without a tuple of arguments that does not fit",
        ),
        (
            call("collections", "OrderedDict", [b")".to_vec(), dict(&[("a", int(1))])].concat(), b"\x92"),
            "call of a class with keyword arguments that does not fit",
        ),
        (
            call("collections", "OrderedDict", b"]K\x01a\x85".to_vec(), b"R"),
            "call of a dictionary of something else than pairs that does not fit",
        ),
    ] {
        let message = error(&body).to_string();
        assert!(message.ends_with(expected), "{message}");
    }
    let pickle = read(&pickle(&tensor), 0).unwrap();
    assert!(matches!(pickle.get(pickle.root()), Value::Rebuilt { by: Rebuild::Tensor, .. }));
    assert!(pickle.values().any(|value| *value == Value::Global(Global::Rebuild(Rebuild::Tensor))));
}

#[test]
fn persistent_ids_are_kept() {
    assert_eq!(value(b"K\x01Q"), "#1");
    assert_eq!(value(b"Pstorage 1\n"), "#\"storage 1\"");
    assert_eq!(error(b"Q").to_string(), "offset 100: nothing on the stack");
}

/// Copying a long list with short calls would take quadratic time.
#[test]
fn calls_do_not_multiply_values() {
    let mut body = [&global("collections", "OrderedDict")[..], b"q\x000]q\x01("].concat();
    for _ in 0..20_000 {
        body.extend_from_slice(b"NN\x86");
    }
    body.extend_from_slice(b"e0");
    for _ in 0..20_000 {
        body.extend_from_slice(b"h\x00h\x01\x85R0");
    }
    assert!(matches!(error(&body), PickleError::TooManyValues { .. }));
}

#[test]
fn deep_nesting_needs_no_stack() {
    let body = [&b"]".repeat(300_000)[..], &b"a".repeat(299_999), b"."].concat();
    let pickle = read(&body, 0).unwrap();
    assert!(matches!(pickle.get(pickle.root()), Value::List(list) if list.len() == 1));
}
