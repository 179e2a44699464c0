//! The answer to `/`: the server's name, and its paths.

use serde_json::{Map, Value, json};
use source::Spec;

/// Names the server, its pages and these sources. Cost: a microsecond a source.
pub(super) fn describe(specs: &[&Spec]) -> String {
    let sources = specs.iter().filter_map(|spec| {
        let path = spec.path.as_ref()?;
        let paths = json!({ "item": format!("{path}/{{id}}"), "items": format!("{path}?ids={{id}},{{id}}") });
        Some((spec.name.clone(), paths))
    });
    let document = json!({
        "name": "Evenkeel",
        "version": env!("CARGO_PKG_VERSION"),
        "description": "A Redis-compatible in-memory server; over HTTP it shows rows of its sources",
        "pages": {
            "openapi": "/openapi.json",
            "metrics": "/metrics",
            "health": "/healthz",
            "readiness": "/readyz"
        },
        "sources": sources.collect::<Map<String, Value>>()
    });
    document.to_string()
}

/// The schema of [`describe`]'s answer.
pub(super) fn schema() -> Value {
    let text = json!({ "type": "string" });
    let texts = |names: &[&str]| {
        let properties: Map<String, Value> =
            names.iter().map(|name| ((*name).into(), text.clone())).collect();
        json!({ "type": "object", "required": names, "properties": properties })
    };
    json!({
        "type": "object",
        "required": ["name", "version", "description", "pages", "sources"],
        "properties": {
            "name": text,
            "version": text,
            "description": text,
            "pages": texts(&["openapi", "metrics", "health", "readiness"]),
            "sources": { "type": "object", "additionalProperties": texts(&["item", "items"]) }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_sources_with_a_path_are_named() {
        let spec = |text: &str| Spec::parse(text.split(' ')).unwrap();
        let shown = spec("items item:{id} sqlite:x path /items");
        let text = describe(&[&shown, &spec("hidden h:{id} sqlite:secret")]);
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&document["name"], &document["pages"]["openapi"]),
            (&"Evenkeel".into(), &"/openapi.json".into())
        );
        let sources = json!({ "items": { "item": "/items/{id}", "items": "/items?ids={id},{id}" } });
        assert_eq!(document["sources"], sources);
        // By its own schema.
        let (schema, names) = (schema(), document.as_object().unwrap().keys());
        assert_eq!(schema["required"], names.cloned().collect::<Value>());
        let pages = document["pages"].as_object().unwrap().keys();
        assert_eq!(schema["properties"]["pages"]["required"], pages.cloned().collect::<Value>());
    }
}
