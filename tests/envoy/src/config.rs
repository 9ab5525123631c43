//! What Envoy runs with: `envoy/envoy.yaml` as it ships, with the edits that one run needs.
//!
//! There is no second, hand-kept configuration: what the tests prove holds for the file a user copies.
//! All ports become 0, so that Envoy takes free ones; [`crate::envoy`] asks it which.

use crate::endpoints::Endpoints;
use crate::loopback;
use crate::policy::Policy;
use crate::repository;
use anyhow::{Context, Result};
use serde_json::{json, Value};
use std::net::SocketAddr;
use std::path::Path;

/// Name of the listener that runs the filter, as in the file.
pub const KVROUTE: &str = "llm";

/// Name of the listener that answers operators and other gateways, as in `envoy/control.yaml` and `envoy/peers.yaml`.
pub const CONTROL: &str = "kvroute_control";

/// Name of the cluster of all gateways, as in that file.
const PEERS: &str = "kvroute_peers";

/// Name of the routed cluster, as in the file.
pub const CLUSTER: &str = "vllm";

/// One Envoy configuration.
#[derive(Debug, Clone)]
pub struct Config {
    document: Value,
}

impl Config {
    /// The quick start, on free ports of 127.0.0.1, with debug headers on.
    pub fn quick_start() -> Result<Self> {
        let mut config = Self { document: read("envoy/envoy.yaml")? };
        *address_of(&mut config.document["admin"]) = free_port();
        *address_of(config.listener_mut(KVROUTE)) = free_port();
        Ok(config.plugin("/debug_headers", json!(true)))
    }

    /// Routes to these hosts: the cluster's endpoints and the plugin's `hosts`.
    pub fn hosts(mut self, hosts: &[SocketAddr]) -> Self {
        set_endpoints(self.cluster_mut(CLUSTER), hosts);
        let spelled: Vec<String> = hosts.iter().map(SocketAddr::to_string).collect();
        self.plugin("/hosts", json!(spelled))
    }

    /// Takes the cluster's endpoints from this file while it runs. The plugin's `hosts` stay as they are.
    pub fn endpoints_from(mut self, endpoints: &Endpoints) -> Self {
        let cluster = self.cluster_mut(endpoints.cluster());
        cluster["type"] = json!("EDS");
        cluster["eds_cluster_config"] = json!({"eds_config": {
            "resource_api_version": "V3",
            "path_config_source": {"path": endpoints.path().to_string_lossy()},
        }});
        if let Some(cluster) = cluster.as_object_mut() {
            cluster.remove("load_assignment");
        }
        self
    }

    /// Adds a cluster of this name that leads to Envoy's own admin interface, for the plugin to ask who is there.
    pub fn with_admin_cluster(mut self, name: &str) -> Self {
        let admin = loopback::own(9901);
        *address_of(&mut self.document["admin"]) = socket_address(admin);
        let mut cluster = json!({"name": name, "type": "STATIC", "connect_timeout": "1s",
            "load_assignment": {"cluster_name": name}});
        set_endpoints(&mut cluster, &[admin]);
        push(&mut self.document["static_resources"]["clusters"], cluster);
        self
    }

    /// Runs another module than the file names, on all listeners.
    pub fn module(mut self, path: &Path) -> Self {
        for listener in items(&mut self.document["static_resources"]["listeners"]) {
            wasm_of(listener)["vm_config"]["code"]["local"]["filename"] = json!(path);
        }
        self
    }

    /// Asks this name server, and no other, for all names.
    pub fn names_from(mut self, server: SocketAddr) -> Self {
        const TYPE: &str =
            "type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig";
        self.document["typed_dns_resolver_config"] = json!({
            "name": "envoy.network.dns_resolver.cares",
            "typed_config": {"@type": TYPE, "resolvers": [{"socket_address": socket_address(server)}]},
        });
        self
    }

    /// Sets one key of the plugin's configuration, named by a JSON pointer such as `/poll/interval_ms`.
    pub fn plugin(self, pointer: &str, value: Value) -> Self {
        self.edit_plugin(|plugin| set(plugin, pointer, value))
    }

    /// Edits the plugin's configuration as a whole.
    pub fn edit_plugin(mut self, edit: impl FnOnce(&mut Value)) -> Self {
        edit_json(self.listener_mut(KVROUTE), edit);
        self
    }

    /// Edits the listener that runs the filter.
    pub fn edit_listener(mut self, edit: impl FnOnce(&mut Value)) -> Self {
        edit(self.listener_mut(KVROUTE));
        self
    }

    /// Edits that listener's HTTP connection manager.
    pub fn edit_manager(mut self, edit: impl FnOnce(&mut Value)) -> Self {
        edit(manager_of(self.listener_mut(KVROUTE)));
        self
    }

    /// Edits the cluster that is routed to.
    pub fn edit_cluster(mut self, edit: impl FnOnce(&mut Value)) -> Self {
        edit(self.cluster_mut(CLUSTER));
        self
    }

    /// Adds what kvroute is compared with: the same listener without the filter, and the same cluster, with these
    /// hosts, under one of Envoy's own policies. Both bear the policy's name.
    pub fn with_policy(mut self, policy: Policy, hosts: &[SocketAddr]) -> Self {
        let mut cluster = self.cluster_mut(CLUSTER).clone();
        cluster["name"] = json!(policy.name());
        cluster["load_balancing_policy"] = policy.load_balancing();
        set_endpoints(&mut cluster, hosts);

        let mut listener = self.listener_mut(KVROUTE).clone();
        listener["name"] = json!(policy.name());
        let manager = manager_of(&mut listener);
        if let Some(filters) = manager["http_filters"].as_array_mut() {
            filters.retain(|filter| filter["name"] != "kvroute");
        }
        let route = &mut manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"];
        route["cluster"] = json!(policy.name());
        route["hash_policy"] = policy.hash_policy();

        push(&mut self.document["static_resources"]["clusters"], cluster);
        push(&mut self.document["static_resources"]["listeners"], listener);
        self
    }

    /// Adds `envoy/peers.yaml`: a control listener at `gateways[own]`, and the exchange with all gateways.
    pub fn with_peers(mut self, gateways: &[SocketAddr], own: usize, secret: &str) -> Result<Self> {
        let mut peers = read("envoy/peers.yaml")?;
        let added = &mut peers["static_resources"];
        let cluster = named(&mut added["clusters"], PEERS);
        set_endpoints(cluster, gateways);
        push(&mut self.document["static_resources"]["clusters"], cluster.clone());

        let listener = named(&mut added["listeners"], CONTROL);
        *address_of(listener) = socket_address(gateways[own]);
        let spelled: Vec<String> = gateways.iter().map(SocketAddr::to_string).collect();
        let control = edit_json(listener, |control| {
            set(control, "/peers/hosts", json!(spelled));
            set(control, "/peers/secret", json!(secret));
        });
        push(&mut self.document["static_resources"]["listeners"], listener.clone());
        Ok(self.plugin("/peers", control["peers"].clone()))
    }

    /// Takes the plugin's hosts from Envoy's own membership, asked through an admin cluster of this name.
    pub fn discovering(self, admin: &str) -> Self {
        self.with_admin_cluster(admin).edit_plugin(|plugin| {
            plugin["discover"] = json!({"admin_cluster": admin});
            // Not even null beside it.
            if let Some(plugin) = plugin.as_object_mut() {
                plugin.remove("hosts");
            }
        })
    }

    /// Adds `envoy/control.yaml`: a control listener, called [`CONTROL`], on a free port, for those who know the secret.
    pub fn with_control(mut self, secret: Option<&str>) -> Result<Self> {
        let mut control = read("envoy/control.yaml")?;
        let listener = named(&mut control["static_resources"]["listeners"], CONTROL);
        *address_of(listener) = free_port();
        if let Some(secret) = secret {
            edit_json(listener, |control| set(control, "/peers/secret", json!(secret)));
        }
        push(&mut self.document["static_resources"]["listeners"], listener.clone());
        Ok(self)
    }

    /// Writes every access log to this path.
    pub(crate) fn access_log(mut self, path: &str) -> Self {
        for listener in items(&mut self.document["static_resources"]["listeners"]) {
            for log in items(&mut manager_of(listener)["access_log"]) {
                log["typed_config"]["path"] = json!(path);
            }
        }
        self
    }

    /// The bootstrap document, listeners and all.
    pub(crate) fn bootstrap(&self) -> &Value {
        &self.document
    }

    /// The bootstrap document with its listeners read from the file `listeners`, which Envoy watches.
    pub(crate) fn dynamic_bootstrap(&self, listeners: &str) -> Value {
        let mut document = self.document.clone();
        document["static_resources"]["listeners"] = json!([]);
        document["dynamic_resources"]["lds_config"] = json!({"path_config_source": {"path": listeners}});
        document
    }

    /// The listeners as a discovery response, for that file.
    pub(crate) fn listener_resources(&self) -> Value {
        let mut listeners = self.document["static_resources"]["listeners"].clone();
        for listener in items(&mut listeners) {
            listener["@type"] = json!("type.googleapis.com/envoy.config.listener.v3.Listener");
        }
        json!({ "resources": listeners })
    }

    fn listener_mut(&mut self, name: &str) -> &mut Value {
        named(&mut self.document["static_resources"]["listeners"], name)
    }

    fn cluster_mut(&mut self, name: &str) -> &mut Value {
        named(&mut self.document["static_resources"]["clusters"], name)
    }
}

/// Edits the configuration of a listener's filter, and answers how it is then.
fn edit_json(listener: &mut Value, edit: impl FnOnce(&mut Value)) -> Value {
    let text = &mut wasm_of(listener)["configuration"]["value"];
    let mut plugin = serde_json::from_str(text.as_str().unwrap_or_default()).unwrap_or_default();
    edit(&mut plugin);
    *text = json!(plugin.to_string());
    plugin
}

/// A configuration file of the repository.
fn read(path: &str) -> Result<Value> {
    let path = repository().join(path);
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path:?}"))?;
    serde_yaml_ng::from_str(&text).with_context(|| format!("parsing {path:?}"))
}

/// Sets the value at a JSON pointer, making the objects on the way.
pub fn set(document: &mut Value, pointer: &str, value: Value) {
    let place = pointer.split('/').skip(1).fold(document, |at, key| &mut at[key]);
    *place = value;
}

fn items(list: &mut Value) -> std::slice::IterMut<'_, Value> {
    list.as_array_mut().map(|items| items.iter_mut()).unwrap_or_default()
}

fn push(list: &mut Value, item: Value) {
    if let Some(list) = list.as_array_mut() {
        list.push(item);
    }
}

/// The item of this name. The file is ours, so a missing one is a mistake in the file or here.
fn named<'a>(list: &'a mut Value, name: &str) -> &'a mut Value {
    items(list)
        .find(|item| item["name"] == name)
        .unwrap_or_else(|| panic!("envoy/envoy.yaml has nothing named {name}"))
}

fn manager_of(listener: &mut Value) -> &mut Value {
    &mut listener["filter_chains"][0]["filters"][0]["typed_config"]
}

fn wasm_of(listener: &mut Value) -> &mut Value {
    &mut named(&mut manager_of(listener)["http_filters"], "kvroute")["typed_config"]["config"]
}

fn address_of(owner: &mut Value) -> &mut Value {
    &mut owner["address"]["socket_address"]
}

fn socket_address(address: SocketAddr) -> Value {
    json!({"address": address.ip().to_string(), "port_value": address.port()})
}

fn free_port() -> Value {
    json!({"address": "127.0.0.1", "port_value": 0})
}

fn set_endpoints(cluster: &mut Value, hosts: &[SocketAddr]) {
    let endpoints: Vec<Value> = hosts
        .iter()
        .map(|host| json!({"endpoint": {"address": {"socket_address": socket_address(*host)}}}))
        .collect();
    cluster["load_assignment"]["endpoints"] = json!([{ "lb_endpoints": endpoints }]);
}
