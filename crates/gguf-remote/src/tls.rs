//! Requirements of encrypted connections: processor instructions, and trusted certificates.

use crate::Result;
use std::sync::Arc;

use ureq::tls::{Certificate, PemItem, TlsConfigBuilder, parse_pem};

use crate::error::RemoteError;
use gguf_core::input;

/// Sets the crypto provider on supported processors. On others, [`check_processor`] fails before it is needed.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) fn with_primitives(builder: TlsConfigBuilder) -> TlsConfigBuilder {
    builder.unversioned_rustls_crypto_provider(Arc::new(rustls_graviola::default_provider()))
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn with_primitives(builder: TlsConfigBuilder) -> TlsConfigBuilder {
    builder
}

/// Checks that the processor has the instructions that encryption needs.
pub(super) fn check_processor() -> Result<()> {
    #[cfg(target_arch = "x86_64")]
    let features =
        features!(is_x86_feature_detected: "aes", "ssse3", "avx", "avx2", "adx", "bmi1", "bmi2", "pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    let features = features!(is_aarch64_feature_detected: "aes", "sha2", "pmull", "neon");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let features = [("x86-64 or aarch64", false)];
    match features.into_iter().find(|(_, is_there)| !is_there) {
        Some((missing, _)) => Err(RemoteError::Processor { missing }),
        None => Ok(()),
    }
}

/// Names of instructions, and whether this processor has them.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! features {
    ($detected:ident: $( $feature:tt ),*) => {
        [$( ($feature, std::arch::$detected!($feature)) ),*]
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use features;

/// Reads the certificates of `SSL_CERT_FILE`, which replace the built-in ones (Mozilla's). A company's own proxy or
/// server needs them. `None` without the variable.
pub(super) fn roots() -> Result<Option<Arc<Vec<Certificate<'static>>>>> {
    let Some(path) = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let text = input::read(path.as_ref())?;
    let is_certificate = |item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    };
    let found: Vec<_> = parse_pem(&text).filter_map(is_certificate).collect();
    if found.is_empty() {
        let text = format!("{}: no certificate in it (`SSL_CERT_FILE`)", path.display());
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, text).into());
    }
    Ok(Some(Arc::new(found)))
}
