//! Job tokens: with one, ranks of a tenant may join jobs of certain names, until it expires. They
//! are JSON Web Tokens (RFC 7519), signed by HMAC with SHA-256, of a key that the daemon and who
//! makes them share.

use std::fs;
use std::path::Path;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result as JwtResult};
use jsonwebtoken::signature::{Error as SignatureError, Signer, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use ring::hmac;
use serde::{Deserialize, Serialize};
use wildmatch::WildMatch;

use crate::refusals::Reason;

/// Least length of a key, in bytes: that of what HMAC makes (RFC 7518, 3.2).
const LEAST_KEY: usize = 32;

/// What a token says.
#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    tenant: String,
    /// Names of jobs, with `*` for any text and `?` for any one character.
    jobs: String,
    /// Until when, in seconds since 1970.
    exp: u64,
}

/// What tokens are signed with.
pub struct TokenKey(RwLock<Keys>);

struct Keys {
    signing: EncodingKey,
    verifying: DecodingKey,
}

/// Why a key is none.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It cannot be read.
    #[error("token key {file}: {why}; give a file that this user may read")]
    Unreadable {
        /// The file.
        file: String,
        /// What the system said.
        why: String,
    },
    /// It is too short.
    #[error(
        "token key {file} has {len} bytes; at least {LEAST_KEY} are allowed: make one with \
         `openssl rand -hex 32`"
    )]
    Short {
        /// The file.
        file: String,
        /// Bytes without space at the end.
        len: usize,
    },
}

/// Why a rank may not join.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It has no token.
    #[error(
        "this aggregator asks for a job token; give the file of one (token-file, \
         SWITCHML_TOKEN_FILE), which its operator makes with `switchml-aggregator token`"
    )]
    Missing,
    /// The token is not signed with this key, or changed, or none at all.
    #[error("the job token is not one of this aggregator's; ask its operator for another")]
    Forged,
    /// Its time is over.
    #[error("the job token has expired; ask the aggregator's operator for another")]
    Expired,
    /// It is for other jobs.
    #[error(
        "the job token is for jobs of the name {jobs:?}, not for {job:?}; give the job such a \
         name, or ask the aggregator's operator for another token"
    )]
    OtherJobs {
        /// The names that it is for.
        jobs: String,
        /// The job.
        job: String,
    },
}

impl TokenError {
    /// As what it is counted.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Missing => Reason::NoToken,
            Self::Forged => Reason::ForgedToken,
            Self::Expired => Reason::ExpiredToken,
            Self::OtherJobs { .. } => Reason::TokenOfOtherJobs,
        }
    }
}

impl TokenKey {
    /// The key in a file; space at its end does not count.
    ///
    /// # Errors
    ///
    /// [`KeyError`].
    pub fn read(file: &Path) -> Result<Self, KeyError> {
        let name = file.display().to_string();
        let read = fs::read(file);
        let bytes = read
            .map_err(|error| KeyError::Unreadable { file: name.clone(), why: error.to_string() })?;
        let key = bytes.trim_ascii_end();
        if key.len() < LEAST_KEY {
            return Err(KeyError::Short { file: name, len: key.len() });
        }
        Ok(Self::new(key))
    }

    fn new(key: &[u8]) -> Self {
        // Whoever was first installed the same.
        let _ = CryptoProvider::install_default(&PROVIDER);
        let (signing, verifying) = (EncodingKey::from_secret(key), DecodingKey::from_secret(key));
        Self(RwLock::new(Keys { signing, verifying }))
    }

    /// From now on it is that of another.
    pub fn replace(&self, other: Self) {
        let other = other.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = other;
    }

    fn keys(&self) -> RwLockReadGuard<'_, Keys> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A token for jobs of a tenant, whose names match `jobs`, for a time from now.
    ///
    /// # Errors
    ///
    /// When the library cannot make it, which is a mistake here.
    pub fn sign(&self, tenant: &str, jobs: &str, time: Duration) -> JwtResult<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let exp = now.as_secs().saturating_add(time.as_secs());
        let claims = Claims { tenant: tenant.to_owned(), jobs: jobs.to_owned(), exp };
        encode(&Header::new(Algorithm::HS256), &claims, &self.keys().signing)
    }

    /// The tenant whose token it is, if it is one for this job, now.
    ///
    /// # Errors
    ///
    /// [`TokenError`].
    pub fn verify(&self, token: &str, job: &str) -> Result<String, TokenError> {
        if token.is_empty() {
            return Err(TokenError::Missing);
        }
        // No other algorithm, and none at all, is taken, whatever the token says.
        let mut validation = Validation::new(Algorithm::HS256);
        validation.leeway = 0;
        let claims = decode::<Claims>(token.trim(), &self.keys().verifying, &validation);
        let claims = claims.map_err(|error| match error.kind() {
            ErrorKind::ExpiredSignature => TokenError::Expired,
            _ => TokenError::Forged,
        })?;
        let Claims { tenant, jobs, .. } = claims.claims;
        match WildMatch::new(&jobs).matches(job) {
            true => Ok(tenant),
            false => Err(TokenError::OtherJobs { jobs, job: job.to_owned() }),
        }
    }
}

/// HMAC with SHA-256, by ring.
struct Hmac(hmac::Key);

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |algorithm, key| Ok(Box::new(Hmac::new(*algorithm, key.as_bytes())?)),
    verifier_factory: |algorithm, key| {
        Ok(Box::new(Hmac::new(*algorithm, key.try_get_as_bytes()?)?))
    },
    key_utils: KeyUtils::new_unimplemented(),
};

impl Hmac {
    fn new(algorithm: Algorithm, key: &[u8]) -> JwtResult<Self> {
        match algorithm {
            Algorithm::HS256 => Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, key))),
            _ => Err(ErrorKind::InvalidAlgorithm.into()),
        }
    }
}

impl Signer<Vec<u8>> for Hmac {
    fn try_sign(&self, message: &[u8]) -> Result<Vec<u8>, SignatureError> {
        Ok(hmac::sign(&self.0, message).as_ref().to_vec())
    }
}

impl Verifier<Vec<u8>> for Hmac {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), SignatureError> {
        hmac::verify(&self.0, message, signature).map_err(|_| SignatureError::new())
    }
}

impl JwtSigner for Hmac {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}

impl JwtVerifier for Hmac {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// RFC 7515, appendix A.1: its key and its token, whose claims are others and long expired.
    #[test]
    fn signatures_are_those_of_the_specification() {
        let key = [
            3, 35, 53, 75, 43, 15, 165, 188, 131, 126, 6, 101, 119, 123, 166, 143, 90, 179, 40,
            230, 240, 84, 201, 40, 169, 15, 132, 178, 210, 80, 46, 191, 211, 251, 90, 146, 210, 6,
            71, 239, 150, 138, 180, 195, 119, 98, 61, 34, 61, 46, 33, 114, 5, 46, 79, 8, 192, 205,
            154, 245, 103, 208, 128, 163,
        ];
        let signed = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA\
                      4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
        let hmac = Hmac::new(Algorithm::HS256, &key).unwrap();
        let expected = [
            116, 24, 223, 180, 151, 153, 224, 37, 79, 250, 96, 125, 216, 173, 187, 186, 22, 212,
            37, 77, 105, 214, 191, 240, 91, 88, 5, 88, 83, 132, 141, 121,
        ];
        assert_eq!(hmac.try_sign(signed.as_bytes()).unwrap(), expected);
        assert!(hmac.verify(signed.as_bytes(), &expected.to_vec()).is_ok());
        assert!(hmac.verify(&signed.as_bytes()[1..], &expected.to_vec()).is_err());
    }

    #[test]
    fn names_of_jobs() {
        let key = TokenKey::new(&[7; 32]);
        for (jobs, job, fits) in [
            ("train", "train", true),
            ("train", "train2", false),
            ("a/*", "a/b", true),
            ("a/*", "b/a/b", false),
            ("a/*", "A/b", false),
            ("*", "", true),
            ("a?", "ab", true),
            ("a?", "a", false),
            ("", "a", false),
        ] {
            let token = key.sign("t", jobs, HOUR).unwrap();
            let expected = match fits {
                true => Ok("t".to_owned()),
                false => Err(TokenError::OtherJobs { jobs: jobs.into(), job: job.into() }),
            };
            assert_eq!(key.verify(&token, job), expected, "{jobs} {job}");
        }
    }

    #[test]
    fn what_is_not_signed_with_this_key_is_forged() {
        let key = TokenKey::new(&[7; 32]);
        let token = key.sign("t", "*", HOUR).unwrap();
        let other = TokenKey::new(&[8; 32]).sign("t", "*", HOUR).unwrap();
        let parts: Vec<_> = token.split('.').collect();
        let wider = key.sign("t", "**", HOUR).unwrap();
        let wider = wider.split('.').nth(1).unwrap();
        // {"alg":"none","typ":"JWT"} in base64url.
        let none = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0";
        for forged in [
            other,
            format!("{}.{wider}.{}", parts[0], parts[2]),
            format!("{none}.{}.", parts[1]),
            format!("{none}.{}.{}", parts[1], parts[2]),
            format!("{}.{}.", parts[0], parts[1]),
            token[..token.len() - 1].to_owned(),
            "token".to_owned(),
            "..".to_owned(),
            "\u{3b1}".to_owned(),
        ] {
            assert_eq!(key.verify(&forged, "a"), Err(TokenError::Forged), "{forged}");
        }
        assert_eq!(key.verify("", "a"), Err(TokenError::Missing));
        let now = key.sign("t", "*", Duration::ZERO).unwrap();
        std::thread::sleep(Duration::from_millis(1100));
        assert_eq!(key.verify(&now, "a"), Err(TokenError::Expired));
        // A file ends with a line's end.
        assert_eq!(key.verify(&format!("{token}\n"), "a"), Ok("t".to_owned()));
    }
}
