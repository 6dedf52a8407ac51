//! Tests of prompt files: accepted forms, rejected data, and prose.

use super::*;
use crate::PromptSource::{Completion, Messages, Text, Tokens};

fn read_as(name: &str, content: &[u8], form: PromptForm) -> Result<Vec<PromptSource>, VerifyError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs_err::write(&path, content).unwrap();
    read_prompts(&path, form)
}

fn read(name: &str, content: &[u8]) -> Result<Vec<PromptSource>, VerifyError> {
    read_as(name, content, PromptForm::Detected)
}

fn text(text: &str) -> PromptSource {
    Text(text.to_owned())
}

fn completion() -> PromptSource {
    Completion { prompt: "p".to_owned(), completion: "c".to_owned() }
}

fn chat() -> PromptSource {
    Messages(serde_json::json!([{ "role": "user", "content": "hi" }]))
}

/// One prompt of every form, one per line.
const LINES: [&str; 6] = [
    r#"{"text":"a"}"#,
    r#"{"tokens":[1,2]}"#,
    r#"{"prompt":"p","completion":"c"}"#,
    r#"{"messages":[{"role":"user","content":"hi"}]}"#,
    r#""b""#,
    r#"[{"role":"user","content":"hi"}]"#,
];

fn all_forms() -> Vec<PromptSource> {
    vec![text("a"), Tokens(vec![1, 2]), completion(), chat(), text("b"), chat()]
}

#[test]
fn every_form_is_read_from_lines_and_arrays_under_any_name() {
    let array = format!("[\n  {}\n]\n", LINES.join(",\n  "));
    for name in ["p.jsonl", "p.ndjson", "p.json", "p.JSON", "p", "p.txt"] {
        assert_eq!(read(name, array.as_bytes()).unwrap(), all_forms(), "{name}");
    }
    for name in ["p.jsonl", "p.ndjson", "p.json"] {
        assert_eq!(read(name, LINES.join("\n\n").as_bytes()).unwrap(), all_forms(), "{name}");
    }
    // By content: lines of objects and arrays; a line that is a string could be prose.
    let objects: Vec<&str> = LINES.into_iter().filter(|line| !line.starts_with('"')).collect();
    let expected: Vec<PromptSource> = all_forms().into_iter().filter(|p| *p != text("b")).collect();
    for name in ["p.txt", "p"] {
        assert_eq!(read(name, objects.join("\r\n").as_bytes()).unwrap(), expected, "{name}");
    }
    assert_eq!(read("p.txt", br#"["a", "b"]"#).unwrap(), [text("a"), text("b")]);
    assert_eq!(read("p.txt", br#"{"text": "a"}"#).unwrap(), [text("a")]);
    assert_eq!(read("p.json", b"\xef\xbb\xbf[\"a\"]").unwrap(), [text("a")], "a mark before JSON");
    assert_eq!(read("p.txt", b"\xef\xbb\xbfa").unwrap(), [text("\u{feff}a")], "and before prose");
    // One chat, then two.
    let one = LINES[5];
    assert_eq!(read("p.json", one.as_bytes()).unwrap(), [chat()]);
    assert_eq!(read("p.json", format!("[{one}, {one}]").as_bytes()).unwrap(), [chat(), chat()]);
}

#[test]
fn bad_lines_and_entries_are_named() {
    for (name, content, expected) in [
        ("p.jsonl", &b"{\"text\":\"a\"}\nab\xff"[..], "line 2: invalid UTF-8 at byte 2"),
        (
            "p.jsonl",
            br#"{"text":"a","tokens":[]}"#,
            "line 1: found several forms at once; expected a text, or",
        ),
        ("p.jsonl", br#"{"txt":"a"}"#, "line 1: unknown field"),
        ("p.jsonl", br#"{"tokens":[-1]}"#, "line 1: invalid value"),
        ("p.jsonl", b"{\"text\":\"a\"}\n{\"text\":", "line 2: EOF"),
        ("p.jsonl", b"\n\n", "no prompts"),
        ("p.txt", b"", "no prompts"),
        ("p.json", b" ", "no prompts"),
        ("p.json", b"[]", "no prompts"),
        ("p.json", br#"["a", 3]"#, "entry 2: found a number"),
        ("p.json", br#"["a", {"prompt": "b"}]"#, "entry 2: found `prompt` without `completion`"),
        ("p.json", b"[[1, 2], [3]]", "entry 1: found an array"),
        ("p.json", br#"{"text": "a", "text": "b"}"#, "line 1: key `text` is given twice"),
        ("p.jsonl", br#"[{"tokens": [1], "tokens": [2]}]"#, "line 1: key `tokens` is given twice"),
        ("p.json", br#"{"prompts": ["a"]}"#, "JSON: unknown field `prompts`"),
        ("p.json", b"7", "JSON: found a number"),
        ("p.json", b"once upon a time", "looks like JSON, but is not valid"),
    ] {
        let error = read(name, content).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn data_that_is_no_prompt_is_refused_under_any_name() {
    for (content, expected) in [
        (r#"{"a": 1}"#, "unknown field `a`"),
        (r#"{"text": "a", "text": "b"}"#, "key `text` is given twice"),
        ("[1, 2, 3]", "entry 1: found a number"),
        (r#"["a", "b",]"#, "looks like JSON"),
        (r#"["a", "b"#, "looks like JSON"),
        ("[\n  {\"text\": \"a\"},\n  {\"text\": \"b\"", "looks like JSON"),
        ("{\"text\": \"a\"}\n{\"text\": \"b\"}\n{\"text\": \"c", "line 3: EOF"),
        ("{'text': 'a'}\n{'text': 'b'}\n", "looks like JSON"),
        ("[{'role': 'user', 'content': 'a'}]", "looks like JSON"),
        ("['one', 'two']", "looks like JSON"),
        ("{\n  \"model\": \"x\", // which\n  \"text\": \"a\"\n}", "looks like JSON"),
        ("{\"question\": \"a\"}\n{\"question\": \"b\"}\n", "line 1: unknown field `question`"),
        ("id,text,label\n1,one,0\n2,two,1\n", "a table (CSV)"),
        ("name,score\r\n\"Doe, Jane\",3\r\n\"Roe, \"\"R\"\"\",4\r\n", "a table (CSV)"),
        ("prompt,completion\nhello, you,hi\nbye, then, all,bye\n", "a table (CSV)"),
        ("Paris,France\nRome,Italy\nBerlin,Germany\n", "a table (CSV)"),
        ("sentence\tlabel\nIt is fine.\t1\nIt is not.\t0\n", "a table (TSV)"),
        ("Frage;Antwort\nWer?;Ich\nWo?;Hier\n", "a table (CSV)"),
    ] {
        for name in ["p.txt", "p", "p.md"] {
            let error = read(name, content.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(expected), "{content}: {error}");
            let hints = gguf_core::Hint::hints(&error);
            assert!(hints.iter().any(|hint| hint.contains("--plain-text")), "{error:?}");
        }
        assert_eq!(read_as("p.csv", content.as_bytes(), PromptForm::PlainText).unwrap(), [text(content)]);
    }
    // A table by its file name alone.
    for name in ["p.csv", "p.tsv", "p.CSV"] {
        assert!(read(name, b"once upon a time").unwrap_err().to_string().contains("a table"), "{name}");
    }
}

#[test]
fn prose_is_read_as_it_is() {
    for content in [
        "Once upon a time, there was a model.\n",
        "\n = Robert Boulter = \n\n Robert Boulter is an English film , television and theatre actor . He had\n",
        " = = Career = = \n\n = = = 2000 @-@ 2005 = = = \n\n In 2000 , he\n",
        "[[File:a.png|thumb]]\n'''Bold''' text\n{| class=\"wikitable\"\n| a || b\n|}\n",
        "{{Infobox person\n| name = A\n| born = 1, 2\n}}\nA was\n",
        "{| class=\"wikitable\"\n|-\n| a\n|}\n",
        "[1] Smith, J., 2001.\n[2] Roe, R., 2002.\n",
        "[1]\nThe first footnote, and what it says.\n[2]\n[3]\n",
        "[1]\n[2]\n[3]\n",
        "[Chorus]\nla la la\n[Verse 1]\nla\n",
        "[12:30] <a> hello\n[12:31] <b> hi\n[12:32] <a> \"quoted\"\n",
        "[link](https://example.org), and more\n[other]: https://example.org\n",
        "[\"Hello,\" he said.]\nAnd then, \"nothing\".\n",
        "[\"Hello\", he said, and she wrote \"Bye\", and so on and on.\n",
        "[section]\nkey = \"value\"\nlist = [1, 2]\n",
        "{\n  int a = 1;\n  printf(\"%d\", a);\n}\n",
        "{% for a in b %}{{ a }}{% endfor %}\n",
        "{:a 1, :b [1 2]}\n",
        "{ \"quoted\" is how he said it }\n",
        "['Twas brillig, and the slithy toves did gyre]\n",
        "\"To be, or not to be\"\n",
        "Tyger Tyger, burning bright,\nIn the forests of the night;\nWhat immortal hand or eye,\n",
        "Red, green, blue\nOne, two, three\nCats, dogs, mice\n",
        "Roses are red,violets are blue\nSugar is sweet,and so are you\nThis is a line,and this is too\n",
        "Alpha\nBeta\nGamma\n",
        "a,b\nc,d\n",
        "int a;\nint b;\nint c;\n",
        "for (int i = 0; i < n; i++)\nfor (int j = 0; j < n; j++)\nfor (int k = 0; k < n; k++)\n",
        "mov eax, 1\nadd eax, ebx\nsub eax, ecx\n",
        "mov eax,1\nadd eax,ebx\nsub eax,ecx\n",
        "\tif a:\n\t\treturn b\n\telse:\n",
        "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n",
        "Dear Sir,\nthank you,\nYours,\n",
        "He came, he saw, he won.\nShe came, she saw, she won.\nThey came, they saw, they won.\n",
        "import os\nfrom a import b, c\nx = [1, 2, 3]\n",
        "\u{feff}Chapter 1\n",
        "GGUF is a format, PAR1 is none of ours.\n",
    ] {
        for name in ["p.txt", "p", "p.md", "p.raw"] {
            let found = read(name, content.as_bytes());
            assert!(matches!(&found, Ok(prompts) if *prompts == [text(content)]), "{content}: {found:?}");
        }
    }
}

#[test]
fn binary_files_are_refused_by_what_they_are() {
    for (content, expected) in [
        (&b"GGUF\x03\0\0\0"[..], "a GGUF file; expected text"),
        (b"PAR1\x15\0\x15", "a Parquet file"),
        (b"\x1f\x8b\x08\x01\xff\xff", "compressed by gzip"),
        (b"PK\x03\x04\x14\0", "a ZIP archive"),
        (b"\xff\xfeH\0i\0", "UTF-16 text"),
        (b"%PDF-1.7\n\xff\xff", "a PDF file"),
        (b"text\0text", "binary data"),
    ] {
        for (name, form) in [("p.txt", PromptForm::Detected), ("p.json", PromptForm::PlainText)] {
            let error = read_as(name, content, form).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
    // A zero byte beyond `HEAD_BYTES`, and a character across that boundary.
    let mut long = "ä".repeat(40 << 10).into_bytes();
    long.insert(0, b'a');
    assert!(read("p.txt", &long).is_ok());
    long.push(0);
    assert!(read("p.txt", &long).unwrap_err().to_string().contains("binary data"));
}
