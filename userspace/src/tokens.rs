//! Job tokens: with one, ranks of a tenant may join jobs of certain names, until it expires. They
//! are JSON Web Tokens (RFC 7519), signed by HMAC with SHA-256, of a key that the daemon and who
//! makes them share. A daemon may have several keys, so that a new one can replace an old one while
//! tokens of both are in use.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result as JwtResult};
use jsonwebtoken::signature::{Error as SignatureError, Signer, Verifier};
use jsonwebtoken::{
    Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, decode_header, encode,
};
use ring::hmac;
use serde::{Deserialize, Serialize};
use switchml_control::name_before_move;
use wildmatch::WildMatch;

use crate::refusals::Reason;

/// Least length of a key, in bytes: the length of the HMAC (RFC 7518, 3.2).
const LEAST_KEY: usize = 32;
/// Bytes of a key's id, which has twice as many hexadecimal digits.
const ID_LEN: usize = 4;

/// The claims of a token.
#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    tenant: String,
    /// Names of jobs, with `*` for any text and `?` for any one character.
    jobs: String,
    /// Until when, in seconds since 1970.
    exp: u64,
}

/// A key that signs tokens.
pub struct TokenKey {
    /// The key's id, `kid` in tokens (RFC 7515, 4.1.4): an HMAC of a fixed text, so that nobody has
    /// to choose one. It only names the key in messages.
    id: String,
    signing: EncodingKey,
    verifying: DecodingKey,
}

/// The keys of one daemon: tokens of each are taken.
pub struct TokenKeys(RwLock<Vec<TokenKey>>);

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum KeyError {
    #[error("token key {file}: {why}; give a file that this user may read")]
    Unreadable { file: String, why: String },
    #[error(
        "token key {file} has {len} bytes; at least {LEAST_KEY} are needed; make one with `openssl \
         rand -hex 32`"
    )]
    Short { file: String, len: usize },
}

/// Why a rank may not join.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum TokenError {
    #[error(
        "this aggregator requires a job token; give the file of one (token-file, \
         SWITCHML_TOKEN_FILE), which its operator makes with `switchml-aggregator token`"
    )]
    Missing,
    #[error("the job token is not from this aggregator; ask its operator for another")]
    Forged,
    #[error(
        "the job token is signed with the key {id}, which this aggregator does not have, or no \
         longer has; ask its operator for another token"
    )]
    UnknownKey { id: String },
    #[error(
        "the job token expired {} ago by the aggregator's clock, where it is {}; ask its operator \
         for another, or to set that clock",
        humantime::format_duration(Duration::from_secs(now.saturating_sub(*expired))),
        humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(*now))
    )]
    Expired { expired: u64, now: u64 },
    #[error(
        "the job token is for jobs named {jobs:?}, not {job:?}; give the job such a name, or ask \
         the aggregator's operator for another token"
    )]
    OtherJobs { jobs: String, job: String },
}

impl TokenError {
    /// The reason by which the error is counted.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Missing => Reason::NoToken,
            Self::Forged | Self::UnknownKey { .. } => Reason::ForgedToken,
            Self::Expired { .. } => Reason::ExpiredToken,
            Self::OtherJobs { .. } => Reason::TokenOfOtherJobs,
        }
    }
}

impl TokenKey {
    /// The key in a file; space at its end does not count.
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
        // If another thread was first, it has installed the same.
        let _ = CryptoProvider::install_default(&PROVIDER);
        let secret = hmac::Key::new(hmac::HMAC_SHA256, key);
        let digest = hmac::sign(&secret, b"switchml token key");
        let id = digest.as_ref()[..ID_LEN].iter().map(|byte| format!("{byte:02x}")).collect();
        let (signing, verifying) = (EncodingKey::from_secret(key), DecodingKey::from_secret(key));
        Self { id, signing, verifying }
    }

    /// A token for jobs of a tenant, whose names match `jobs`, for a time from now.
    pub fn sign(&self, tenant: &str, jobs: &str, time: Duration) -> JwtResult<String> {
        let exp = now().saturating_add(time.as_secs());
        let claims = Claims { tenant: tenant.to_owned(), jobs: jobs.to_owned(), exp };
        let header = Header { kid: Some(self.id.clone()), ..Header::new(Algorithm::HS256) };
        encode(&header, &claims, &self.signing)
    }

    /// The claims of a token, if it is signed with this key.
    fn claims(&self, token: &str) -> Option<Claims> {
        // No other algorithm is accepted, nor `none`, whatever the token says.
        let mut validation = Validation::new(Algorithm::HS256);
        // The callers check the time, so that they can say when the token expired.
        validation.validate_exp = false;
        Some(decode(token, &self.verifying, &validation).ok()?.claims)
    }
}

impl TokenKeys {
    /// The keys in these files; `None` if there are no files.
    pub fn read(files: &[PathBuf]) -> Result<Option<Self>, KeyError> {
        let keys: Vec<_> =
            files.iter().map(|file| TokenKey::read(file)).collect::<Result<_, _>>()?;
        Ok((!keys.is_empty()).then(|| Self(RwLock::new(keys))))
    }

    /// Replaces the keys.
    pub fn replace(&self, others: Self) {
        let others = others.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = others;
    }

    /// The keys' ids, for messages.
    pub fn ids(&self) -> Vec<String> {
        self.keys().iter().map(|key| key.id.clone()).collect()
    }

    fn keys(&self) -> RwLockReadGuard<'_, Vec<TokenKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tenant whose token it is, if it is one for this job, now.
    pub fn verify(&self, token: &str, job: &str) -> Result<String, TokenError> {
        let token = token.trim();
        if token.is_empty() {
            return Err(TokenError::Missing);
        }
        let keys = self.keys();
        let signed = keys.iter().find_map(|key| key.claims(token));
        let Claims { tenant, jobs, exp } = signed.ok_or_else(|| unknown(token, &keys))?;
        let now = now();
        if exp <= now {
            return Err(TokenError::Expired { expired: exp, now });
        }
        let is_for = |name: &str| WildMatch::new(&jobs).matches(name);
        // Rule 36.9.
        match is_for(job) || name_before_move(job).is_some_and(is_for) {
            true => Ok(tenant),
            false => Err(TokenError::OtherJobs { jobs, job: job.to_owned() }),
        }
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The error for a token that is signed with none of the keys. It shows the key's id in the token
/// only if that looks like an id, because anybody may have written it.
fn unknown(token: &str, keys: &[TokenKey]) -> TokenError {
    let named = decode_header(token).ok().and_then(|header| header.kid);
    let is_other = |id: &String| {
        id.len() == 2 * ID_LEN
            && id.bytes().all(|digit| digit.is_ascii_hexdigit())
            && keys.iter().all(|key| key.id != *id)
    };
    named.filter(is_other).map_or(TokenError::Forged, |id| TokenError::UnknownKey { id })
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

    fn daemon_with(keys: &[u8]) -> TokenKeys {
        TokenKeys(RwLock::new(keys.iter().map(|byte| TokenKey::new(&[*byte; 32])).collect()))
    }

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
            ("train", "train#0123456789abcdef", true),
            ("train", "train2#0123456789abcdef", false),
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
            assert_eq!(daemon_with(&[7]).verify(&token, job), expected, "{jobs} {job}");
        }
    }

    #[test]
    fn what_is_not_signed_with_this_key_is_forged() {
        let key = TokenKey::new(&[7; 32]);
        let token = key.sign("t", "*", HOUR).unwrap();
        let daemon = daemon_with(&[7]);
        let other = TokenKey { id: key.id.clone(), ..TokenKey::new(&[8; 32]) };
        let other = other.sign("t", "*", HOUR).unwrap();
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
            assert_eq!(daemon.verify(&forged, "a"), Err(TokenError::Forged), "{forged}");
        }
        assert_eq!(daemon.verify("", "a"), Err(TokenError::Missing));
        let over = key.sign("t", "*", Duration::ZERO).unwrap();
        assert!(matches!(daemon.verify(&over, "a"), Err(TokenError::Expired { .. })));
        // A file ends with a line's end.
        assert_eq!(daemon.verify(&format!("{token}\n"), "a"), Ok("t".to_owned()));
    }

    /// The message lets people see whose clock is wrong.
    #[test]
    fn a_token_that_has_expired_says_when_and_by_whose_clock() {
        // `date -ud @1930089600`
        let error = TokenError::Expired { expired: 1_930_089_600 - 3605, now: 1_930_089_600 };
        assert_eq!(
            error.to_string(),
            "the job token expired 1h 5s ago by the aggregator's clock, where it is \
             2031-03-01T00:00:00Z; ask its operator for another, or to set that clock"
        );
    }

    /// A new key is added beside the old one, and later the old one is removed.
    #[test]
    fn keys_replace_each_other() {
        let (old, new) = (TokenKey::new(&[1; 32]), TokenKey::new(&[2; 32]));
        let by_old = old.sign("t", "*", HOUR).unwrap();
        let by_new = new.sign("t", "*", HOUR).unwrap();
        let tenant = || Ok("t".to_owned());
        let unknown = |key: &TokenKey| Err(TokenError::UnknownKey { id: key.id.clone() });
        let daemon = daemon_with(&[1]);
        assert_eq!(
            (daemon.verify(&by_old, "a"), daemon.verify(&by_new, "a")),
            (tenant(), unknown(&new))
        );
        daemon.replace(daemon_with(&[2, 1]));
        assert_eq!(daemon.ids(), [&*new.id, &*old.id]);
        assert_eq!(
            (daemon.verify(&by_old, "a"), daemon.verify(&by_new, "a")),
            (tenant(), tenant())
        );
        daemon.replace(daemon_with(&[2]));
        assert_eq!(
            (daemon.verify(&by_old, "a"), daemon.verify(&by_new, "a")),
            (unknown(&old), tenant())
        );
        // An expired token of the first of two keys: the second key does not make it forged.
        daemon.replace(daemon_with(&[1, 2]));
        let over = old.sign("t", "*", Duration::ZERO).unwrap();
        assert!(matches!(daemon.verify(&over, "a"), Err(TokenError::Expired { .. })));
    }

    /// `printf 'switchml token key' | openssl dgst -sha256 -hmac "$key"`, its first 8 digits.
    #[test]
    fn the_id_of_a_key_is_an_hmac() {
        assert_eq!(TokenKey::new(&[b'k'; 32]).id, "fbdf7de6");
        let token = TokenKey::new(&[b'k'; 32]).sign("t", "*", HOUR).unwrap();
        assert_eq!(decode_header(&token).unwrap().kid.as_deref(), Some("fbdf7de6"));
    }

    /// Another program that makes tokens may use another id of the key, or none.
    #[test]
    fn the_name_of_a_key_decides_nothing() {
        let (daemon, key) = (daemon_with(&[6, 7]), TokenKey::new(&[7; 32]));
        for id in [Some("mine"), Some("00000000"), None] {
            let header = Header { kid: id.map(str::to_owned), ..Header::new(Algorithm::HS256) };
            let claims = Claims { tenant: "t".into(), jobs: "*".into(), exp: u64::MAX };
            let token = encode(&header, &claims, &key.signing).unwrap();
            assert_eq!(daemon.verify(&token, "a"), Ok("t".to_owned()), "{id:?}");
            let by_other = encode(&header, &claims, &TokenKey::new(&[8; 32]).signing).unwrap();
            let expected = match id {
                Some("00000000") => TokenError::UnknownKey { id: "00000000".to_owned() },
                _ => TokenError::Forged,
            };
            assert_eq!(daemon.verify(&by_other, "a"), Err(expected), "{id:?}");
        }
    }
}
