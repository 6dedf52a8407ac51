//! TLS proxy of the server, with a certificate that only these tests trust.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::support::fixture;

/// Starts a proxy of a server; returns its address.
pub fn front(of: &str) -> String {
    let certificate = CertificateDer::from_pem_file(fixture("tls/server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(fixture("tls/server.key")).unwrap();
    let provider = Arc::new(rustls_graviola::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let (config, of) = (Arc::new(config), of.trim_start_matches("http://").to_owned());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (config, of) = (Arc::clone(&config), of.clone());
            // A client that does not trust the certificate disconnects.
            std::thread::spawn(move || drop(converse(config, stream, &of)));
        }
    });
    format!("https://localhost:{port}")
}

/// Forwards requests, one after another, and answers.
fn converse(config: Arc<ServerConfig>, stream: std::io::Result<TcpStream>, of: &str) -> std::io::Result<()> {
    let connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut client = BufReader::new(StreamOwned::new(connection, stream?));
    let mut server = BufReader::new(TcpStream::connect(of)?);
    loop {
        let (request, _) = head(&mut client)?;
        server.get_mut().write_all(request.as_bytes())?;
        let (answer, n_bytes) = head(&mut server)?;
        let mut content = vec![0; n_bytes];
        server.read_exact(&mut content)?;
        client.get_mut().write_all(answer.as_bytes())?;
        client.get_mut().write_all(&content)?;
        client.get_mut().flush()?;
    }
}

/// Lines up to the empty one, and the length of the body.
fn head(from: &mut impl BufRead) -> std::io::Result<(String, usize)> {
    let (mut head, mut n_bytes) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(length) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
            n_bytes = length.trim().parse().unwrap();
        }
        head += &line;
        if line == "\r\n" {
            return Ok((head, n_bytes));
        }
    }
}
