//! Pages of a bucket's list: the few elements of their XML that are read.

use std::collections::HashMap;

use crate::listing::decoded;

/// Maximum depth of elements; servers send four levels.
const MAX_DEPTH: usize = 32;

/// A page of a list.
#[derive(Debug)]
pub(super) struct ListPage {
    pub(super) objects: Vec<ListedObject>,
    /// Token of the next page.
    pub(super) next: Option<String>,
}

/// An object of a list.
#[derive(Debug)]
pub(super) struct ListedObject {
    pub(super) key: String,
    pub(super) n_bytes: Option<u64>,
    pub(super) etag: Option<String>,
}

impl ListPage {
    /// Parses a response to `ListObjectsV2`.
    ///
    /// # Errors
    /// The rule that the text breaks.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let mut objects = Vec::new();
        // Texts of elements: of the page, and of the object that is open.
        let mut fields: HashMap<&str, String> = HashMap::new();
        let (mut open, mut value, mut rest) = (Vec::new(), String::new(), text);
        loop {
            let (data, markup) = until(rest, "<")?;
            push_text(&mut value, data)?;
            if let Some(comment) = markup.strip_prefix("!--") {
                rest = until(comment, "-->")?.1;
                continue;
            }
            if let Some(data) = markup.strip_prefix("![CDATA[") {
                let (data, after) = until(data, "]]>")?;
                value.push_str(data);
                rest = after;
                continue;
            }
            let (tag, after) = until(markup, ">")?;
            rest = after;
            if tag.starts_with('?') {
                continue;
            }
            let name = tag.trim_matches('/').split_ascii_whitespace().next().unwrap_or_default();
            if !tag.starts_with('/') {
                if open.is_empty() && name != "ListBucketResult" {
                    return Err("no `ListBucketResult`");
                }
                if open.len() == MAX_DEPTH {
                    return Err("elements in too many elements");
                }
                open.push(name);
                value.clear();
                if !tag.ends_with('/') {
                    continue;
                }
            }
            if open.last() != Some(&name) {
                return Err("an end of an element that is not open");
            }
            match open[..] {
                [_] => break,
                [_, "Contents"] => objects.push(ListedObject {
                    key: fields.remove("Key").ok_or("an object without a key")?,
                    n_bytes: fields
                        .remove("Size")
                        .map(|size| size.trim().parse::<u64>())
                        .transpose()
                        .map_err(|_| "a size that is no number")?,
                    etag: fields.remove("ETag"),
                }),
                [_, "Contents", "Key" | "Size" | "ETag"]
                | [_, "IsTruncated" | "NextContinuationToken" | "EncodingType"] => {
                    let before = fields.insert(name, std::mem::take(&mut value));
                    before.is_none().then_some(()).ok_or("an element that occurs twice")?;
                }
                _ => {}
            }
            open.pop();
            value.clear();
        }
        // Keys that XML cannot hold are sent like the fields of a form.
        if fields.get("EncodingType").is_some_and(|encoding| encoding == "url") {
            for ListedObject { key, .. } in &mut objects {
                if let Some(decoded) = decoded(&key.replace('+', " ")) {
                    *key = decoded;
                }
            }
        }
        let next = fields.remove("NextContinuationToken").filter(|token| !token.is_empty());
        let next = match fields.get("IsTruncated").map(String::as_str) {
            Some("false" | "0") => None,
            Some("true" | "1") if next.is_none() => return Err("a page without the token of the next one"),
            Some("true" | "1") | None => next,
            Some(_) => return Err("`IsTruncated` is neither true nor false"),
        };
        Ok(Self { objects, next })
    }
}

/// Splits text at the first occurrence of an end.
fn until<'a>(text: &'a str, end: &str) -> Result<(&'a str, &'a str), &'static str> {
    text.split_once(end).ok_or("it ends early")
}

/// Appends text, in which `&lt;`, `&#60;` and `&#x3c;` are characters.
fn push_text(value: &mut String, text: &str) -> Result<(), &'static str> {
    let mut parts = text.split('&');
    value.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let reference = part.split_once(';').and_then(|(name, after)| Some((character(name)?, after)));
        let (character, after) = reference.ok_or("a `&` that stands for no character")?;
        value.push(character);
        value.push_str(after);
    }
    Ok(())
}

/// Returns the character of a reference.
fn character(name: &str) -> Option<char> {
    Some(match name {
        "amp" => '&',
        "apos" => '\'',
        "gt" => '>',
        "lt" => '<',
        "quot" => '"',
        _ => {
            let digits = name.strip_prefix('#')?;
            let code = match digits.strip_prefix(['x', 'X']) {
                Some(digits) => u32::from_str_radix(digits, 16),
                None => digits.parse(),
            };
            char::from_u32(code.ok()?)?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page as servers send it, with these elements in it.
    fn page(elements: &str) -> String {
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!-- by a > server -->\n\
             <ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\n<Name>b</Name><Prefix/>\n{elements}\n\
             </ListBucketResult>\n"
        )
    }

    fn object(elements: &str) -> String {
        page(&format!("<Contents>{elements}</Contents>"))
    }

    /// Keys, sizes and tags of a page.
    fn objects(text: &str) -> Vec<(String, Option<u64>, Option<String>)> {
        let page = ListPage::parse(text).unwrap();
        page.objects.into_iter().map(|object| (object.key, object.n_bytes, object.etag)).collect()
    }

    #[test]
    fn objects_are_read_and_decoded() {
        let contents = "<Contents>\n <Key>a&amp;b &#60;&#x3C;&lt;&gt;&quot;&apos;ü</Key>\n <Size>12</Size>\n\
             <ETag>&quot;tag&quot;</ETag><Owner><ID>x</ID><Key>other</Key></Owner></Contents>\n\
             <Contents><Key ><![CDATA[c&lt;%41+d]]></Key ></Contents><CommonPrefixes><Prefix>p</Prefix></CommonPrefixes>";
        let first = ("a&b <<<>\"'ü".to_owned(), Some(12), Some("\"tag\"".to_owned()));
        assert_eq!(objects(&page(contents)), [first.clone(), ("c&lt;%41+d".to_owned(), None, None)]);
        let decoded = page(&format!("{contents}<EncodingType>url</EncodingType>"));
        assert_eq!(objects(&decoded), [first, ("c&lt;A d".to_owned(), None, None)]);
        for (sent, key) in [("a%2Bb%2f%C3%BC", "a+b/ü"), ("a+%FF", "a+%FF"), ("50%", "50%")] {
            let text =
                page(&format!("<EncodingType>url</EncodingType><Contents><Key>{sent}</Key></Contents>"));
            assert_eq!(objects(&text), [(key.to_owned(), None, None)]);
        }
        assert!(objects(&page("")).is_empty());
    }

    #[test]
    fn a_page_names_the_next_one() {
        let next = |elements: &str| ListPage::parse(&page(elements)).map(|page| page.next);
        let token = "<NextContinuationToken>t&amp;1</NextContinuationToken>";
        assert_eq!(next(token), Ok(Some("t&1".to_owned())));
        assert_eq!(next(&format!("{token}<IsTruncated>true</IsTruncated>")), Ok(Some("t&1".to_owned())));
        assert_eq!(next(&format!("<IsTruncated>false</IsTruncated>{token}")), Ok(None));
        assert_eq!(next("<NextContinuationToken/>"), Ok(None));
        for broken in
            ["true</IsTruncated>", "true</IsTruncated><NextContinuationToken/>", "yes</IsTruncated>"]
        {
            assert!(next(&format!("<IsTruncated>{broken}")).is_err(), "{broken}");
        }
    }

    #[test]
    fn what_is_no_page_is_refused() {
        let whole = object("<Key>k&amp;</Key><Size>1</Size>");
        for end in 0..whole.trim_end().len() {
            assert!(ListPage::parse(&whole[..end]).is_err(), "{}", &whole[..end]);
        }
        for (text, reason) in [
            (object("<Size>1</Size>"), "without a key"),
            (object("<Key>k</Key><Size>-1</Size>"), "no number"),
            (object("<Key>k</Key><Size>99999999999999999999</Size>"), "no number"),
            (object("<Key>k</Key><Key>k</Key>"), "twice"),
            (object("<Key>k</Size></Key>"), "not open"),
            (page("</x>"), "not open"),
            (page(&"<x>".repeat(1 << 20)), "too many"),
            (page("a&b"), "no character"),
            (page("&lol;"), "no character"),
            (page("&#xD800;"), "no character"),
            (page("&#99999999999;"), "no character"),
            ("<!DOCTYPE x [<!ENTITY a \"b\">]><ListBucketResult/>".to_owned(), "ListBucketResult"),
            ("<html></html>".to_owned(), "ListBucketResult"),
            ("</>".to_owned(), "not open"),
            ("sign in".to_owned(), "early"),
        ] {
            let found = ListPage::parse(&text).unwrap_err();
            assert!(found.contains(reason), "{found}: {}", &text[..text.len().min(300)]);
        }
    }
}
