//! Certificates in files, of CAs made for a test.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
    date_time_ymd,
};

/// A CA, which signs certificates.
pub struct Ca(CertifiedIssuer<'static, KeyPair>);

/// The use of a certificate, and whether it is valid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Server,
    Client,
    /// For servers and clients, but expired.
    Expired,
}

impl Ca {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes the CA's own certificate to a file.
    pub fn write(&self, file: &Path) {
        fs::write(file, self.0.pem()).unwrap();
    }

    /// Writes a certificate for a name or an IP address, and its key. Returns the certificate's
    /// number.
    pub fn issue(&self, name: &str, kind: Kind, cert: &Path, key: &Path) -> SerialNumber {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = SerialNumber::from(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.serial_number = Some(number.clone());
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
        number
    }

    /// Writes the list of the certificates that it has revoked.
    pub fn revoke(&self, numbers: &[SerialNumber], file: &Path) {
        let revoked = |number: &SerialNumber| RevokedCertParams {
            serial_number: number.clone(),
            revocation_time: date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 1, 1),
            next_update: date_time_ymd(2026, 2, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: numbers.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        fs::write(file, list.signed_by(&self.0).unwrap().pem().unwrap()).unwrap();
    }
}
