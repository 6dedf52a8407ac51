//! Signature Version 4 of AWS in the query of an address ("presigned"): the request needs no other header than `Host`.
//!
//! <https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html>

use std::fmt::Write as _;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use url::Url;

use gguf_core::text::{date_time, hex};

/// Keys of an account, and the region of a bucket.
pub(super) struct Signer {
    pub(super) key: String,
    pub(super) secret: String,
    /// Session of keys that are valid for a time.
    pub(super) token: Option<String>,
    pub(super) region: String,
}

impl Signer {
    /// Returns the query of a signed GET request: these parameters, and those of the signature. `now` is in seconds
    /// since 1970.
    pub(super) fn signed(
        &self,
        url: &Url,
        mut query: Vec<(&str, String)>,
        now: u64,
        valid: Duration,
    ) -> String {
        let [year, month, day, hour, minute, second] = date_time(now);
        let time = format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z");
        let date = &time[..8];
        let scope = format!("{date}/{}/s3/aws4_request", self.region);
        query.extend([
            ("X-Amz-Algorithm", "AWS4-HMAC-SHA256".to_owned()),
            ("X-Amz-Credential", format!("{}/{scope}", self.key)),
            ("X-Amz-Date", time.clone()),
            ("X-Amz-Expires", valid.as_secs().to_string()),
            ("X-Amz-SignedHeaders", "host".to_owned()),
        ]);
        query.extend(self.token.clone().map(|token| ("X-Amz-Security-Token", token)));
        let query = joined(query);
        let host = url.host_str().unwrap_or_default();
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let request = format!("GET\n{}\n{query}\nhost:{host}{port}\n\nhost\nUNSIGNED-PAYLOAD", url.path());
        let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(&Sha256::digest(request)));
        let secret = format!("AWS4{}", self.secret).into_bytes();
        let parts = [date, self.region.as_str(), "s3", "aws4_request"];
        let key = parts.iter().fold(secret, |key, part| hmac(&key, part.as_bytes()));
        format!("{query}&X-Amz-Signature={}", hex(&hmac(&key, text.as_bytes())))
    }
}

/// Joins the parameters of a query, sorted and percent-encoded.
pub(super) fn joined(mut query: Vec<(&str, String)>) -> String {
    query.sort_unstable();
    let pairs = query.iter().map(|(name, value)| format!("{name}={}", encoded(value, "")));
    pairs.collect::<Vec<_>>().join("&")
}

/// Percent-encodes all characters but letters, digits, `-._~` and those of `kept`.
pub(super) fn encoded(text: &str, kept: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        if c.is_ascii_alphanumeric() || "-._~".contains(c) || kept.contains(c) {
            out.push(c);
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut block = [0u8; 64];
    if key.len() > block.len() {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 24 May 2013, the day of the examples of AWS.
    const DAY: u64 = 1_369_353_600;

    fn signer(secret: &str, token: Option<&str>, region: &str) -> Signer {
        Signer {
            key: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret: secret.to_owned(),
            token: token.map(str::to_owned),
            region: region.to_owned(),
        }
    }

    #[test]
    fn signatures_are_those_of_aws() {
        let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
        let query = |url: &str, signer: &Signer, query| {
            signer.signed(&Url::parse(url).unwrap(), query, DAY, Duration::from_hours(24))
        };
        // The example of the documentation.
        assert_eq!(
            query(
                "https://examplebucket.s3.amazonaws.com/test.txt",
                &signer(secret, None, "us-east-1"),
                vec![]
            ),
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2F\
             aws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature=\
             aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
        );
        // A list, a port with a token, and a secret that is longer than a block of the hash.
        let list = vec![("list-type", "2".to_owned()), ("encoding-type", "url".to_owned())];
        for (url, signer, parameters, expected) in [
            (
                "https://examplebucket.s3.amazonaws.com/",
                signer(secret, None, "us-east-1"),
                list,
                "&X-Amz-SignedHeaders=host&encoding-type=url&list-type=2&X-Amz-Signature=\
                 58e7f65928710f045f6a7e1f7a32b3426b4895900fad799db66faa3ff8b18bd5",
            ),
            (
                "http://127.0.0.1:9000/store/my.bucket/a%20b/%C3%BC%2B~.txt",
                signer(secret, Some("to/ken=="), "eu-west-1"),
                vec![],
                "&X-Amz-Security-Token=to%2Fken%3D%3D&X-Amz-SignedHeaders=host&X-Amz-Signature=\
                 1c7c02faf0a0112c82e2542436294d3a44f6eec829d644d6c23cb200ca9b1487",
            ),
            (
                "https://examplebucket.s3.amazonaws.com/test.txt",
                signer(&"s".repeat(64), None, "us-east-1"),
                vec![],
                "&X-Amz-Signature=7f63825711998c24a47ae7a7cebc8edb87191c68c0ec3f1d0b2f3a25315bd268",
            ),
        ] {
            let query = query(url, &signer, parameters);
            assert!(query.ends_with(expected), "{url}: {query}");
        }
    }
}
