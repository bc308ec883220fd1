//! The manifests in `userspace/deploy/kubernetes`, checked against the API's schema and the
//! service's unit.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde_json::Value;

use super::deployed;
use super::service::settings;

/// Prints a file's documents as JSON.
const AS_JSON: &str = "\
import json, sys, yaml
print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))
";

/// The folder with kubernetes-validate and its interpreter, which `cargo xtask test` names. Without
/// it, the test is skipped.
fn tools(test: &str) -> Option<PathBuf> {
    let folder = env::var_os("SWITCHML_KUBERNETES").map(PathBuf::from);
    if folder.is_none() {
        switchml_rack::skip(test, "no kubernetes-validate; `cargo xtask test` brings it");
    }
    folder
}

fn manifest(name: &str) -> PathBuf {
    deployed("kubernetes").join(name)
}

/// The only container of the manifest's only object of a kind, and its pod.
fn pod_and_container(python: Command, name: &str, kind: &str) -> (Value, Value) {
    let mut python = python;
    let output = python.args(["-c", AS_JSON]).arg(manifest(name)).output().expect("Python starts");
    let documents: Vec<Value> = serde_json::from_slice(&output.stdout).expect("documents");
    let found: Vec<_> = documents.iter().filter(|document| document["kind"] == kind).collect();
    let [object] = found[..] else { panic!("{} of {kind}", found.len()) };
    let pod = object["spec"]["template"]["spec"].clone();
    let [container] = &pod["containers"].as_array().expect("containers")[..] else {
        panic!("several containers")
    };
    let container = container.clone();
    (pod, container)
}

#[test]
fn manifests_are_valid() {
    let Some(tools) = tools("manifests_are_valid") else { return };
    let validate = |file: &Path| {
        let mut validator = Command::new(tools.join("kubernetes-validate"));
        let output = validator.arg("--strict").arg(file).output().expect("it starts");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for name in ["base/aggregator.yaml", "worker.yaml"] {
        let (is_valid, told) = validate(&manifest(name));
        assert!(is_valid, "{told}");
        // A wrong name is found.
        let text = fs::read_to_string(manifest(name)).expect("the manifest");
        let wrong = tempfile::NamedTempFile::with_suffix(".yaml").expect("a file");
        fs::write(&wrong, text.replace("hostNetwork", "hostNetwrok")).expect("written");
        let (is_valid, told) = validate(wrong.path());
        assert!(!is_valid, "{told}");
    }
}

#[test]
fn pods_have_the_capabilities_of_the_service() {
    let Some(tools) = tools("pods_have_the_capabilities_of_the_service") else { return };
    let python = || Command::new(tools.join("python"));
    let (pod, container) = pod_and_container(python(), "base/aggregator.yaml", "DaemonSet");
    let [bounding] = &settings("CapabilityBoundingSet")[..] else { panic!("one line") };
    let names: Vec<_> = bounding.split(' ').map(|name| name.trim_start_matches("CAP_")).collect();
    let context = &container["securityContext"];
    assert_eq!(context["capabilities"]["add"], serde_json::json!(names));
    assert_eq!(context["capabilities"]["drop"], serde_json::json!(["ALL"]));
    assert_eq!((&context["privileged"], &pod["hostNetwork"]), (&false.into(), &true.into()));
    // The same path as in the unit's BindPaths=.
    let [bound] = &settings("BindPaths")[..] else { panic!("one line") };
    let host = &pod["volumes"][1]["hostPath"]["path"];
    let mounts = &container["volumeMounts"][1]["mountPath"];
    let path = format!("{}:{}", host.as_str().expect("text"), mounts.as_str().expect("text"));
    assert_eq!(path, *bound);
    for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        assert_eq!(container[probe]["httpGet"]["path"], path);
    }

    let (_, container) = pod_and_container(python(), "worker.yaml", "Job");
    let context = &container["securityContext"];
    assert_eq!(context["capabilities"], serde_json::json!({ "drop": ["ALL"] }));
    assert_eq!(context["runAsNonRoot"], true);
}

/// The output of kustomize for the example, with test secrets; `None` if a tool is missing.
fn example(test: &str) -> Option<Vec<Value>> {
    let tools = tools(test)?;
    if Command::new("kubectl").args(["version", "--client"]).output().is_err() {
        switchml_rack::skip(test, "there is no kubectl, which has kustomize in it");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let copied = Command::new("cp").arg("-r").arg(manifest(".")).arg(folder).status();
    assert!(copied.expect("cp starts").success());
    for name in ["tls.crt", "tls.key", "token.key"] {
        fs::write(folder.join("example").join(name), name).expect("written");
    }
    let built = Command::new("kubectl").arg("kustomize").arg(folder.join("example")).output();
    let built = built.expect("kubectl starts");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let whole = folder.join("whole.yaml");
    fs::write(&whole, built.stdout).expect("written");
    let mut python = Command::new(tools.join("python"));
    let output = python.args(["-c", AS_JSON]).arg(&whole).output().expect("Python starts");
    Some(serde_json::from_slice(&output.stdout).expect("documents"))
}

#[test]
fn the_example_has_secrets_and_is_scraped() {
    let Some(documents) = example("the_example_has_secrets_and_is_scraped") else { return };
    let of = |kind: &str| {
        let mut found = documents.iter().filter(|document| document["kind"] == kind);
        let one = found.next().unwrap_or_else(|| panic!("no {kind}"));
        assert!(found.next().is_none(), "several of {kind}");
        one
    };
    let (secret, set) = (of("Secret"), &of("DaemonSet")["spec"]["template"]["spec"]);
    let volumes = set["volumes"].as_array().expect("volumes");
    let volume = volumes.iter().find(|volume| volume["name"] == "secret").expect("the secret's");
    assert_eq!(volume["secret"]["secretName"], secret["metadata"]["name"]);
    let container = &set["containers"][0];
    let mounts = container["volumeMounts"].as_array().expect("mounts");
    let mount = mounts.iter().find(|mount| mount["name"] == "secret").expect("the secret's");
    // Each file in the daemon's arguments is in the secret.
    let folder = format!("={}/", mount["mountPath"].as_str().expect("text"));
    for argument in container["args"].as_array().expect("arguments") {
        let argument = argument.as_str().expect("text");
        let (_, file) = argument.split_once(&folder).expect("a file");
        assert!(secret["data"][file].is_string(), "{file}");
    }
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert_eq!(container[probe]["httpGet"]["scheme"], "HTTPS");
    }
    let (service, monitor) = (of("Service"), &of("ServiceMonitor")["spec"]);
    assert_eq!(monitor["selector"]["matchLabels"], service["metadata"]["labels"]);
    let endpoint = &monitor["endpoints"][0];
    assert_eq!(endpoint["port"], service["spec"]["ports"][0]["name"]);
    assert_eq!(endpoint["tlsConfig"]["ca"]["secret"]["name"], secret["metadata"]["name"]);
    assert_eq!(endpoint["relabelings"][0]["replacement"], "switchml", "as in alerts.yml");
}
