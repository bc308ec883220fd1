//! Certificates in files, of CAs made for a test.

use std::fs;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};

/// One that signs certificates.
pub struct Ca(CertifiedIssuer<'static, KeyPair>);

/// What a certificate is for, and how long.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Server,
    Client,
    /// For both, but no longer valid.
    Expired,
}

impl Ca {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its own certificate, written to a file.
    pub fn write(&self, file: &Path) {
        fs::write(file, self.0.pem()).unwrap();
    }

    /// Writes a certificate for a name or an IP address, and its key.
    pub fn issue(&self, name: &str, kind: Kind, cert: &Path, key: &Path) {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.extended_key_usages = match kind {
            Kind::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Kind::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Kind::Expired => Vec::new(),
        };
        if kind == Kind::Expired {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
        }
        let own = KeyPair::generate().unwrap();
        fs::write(key, own.serialize_pem()).unwrap();
        fs::write(cert, params.signed_by(&own, &self.0).unwrap().pem()).unwrap();
    }
}
