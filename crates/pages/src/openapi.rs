//! The OpenAPI 3.1 description of HTTP's pages.

use crate::welcome;
use http::target::IDS_MAX;
use serde_json::{Map, Value, json};
use source::{Form, IdType, Spec};

/// Describes these sources, and the pages about the server itself. Cost: some microseconds a source.
pub(super) fn describe(specs: &[&Spec]) -> String {
    let mut paths = Map::new();
    let mut schemas = Map::new();
    schemas.insert("Problem".into(), problem_schema());
    for spec in specs {
        let Some(path) = &spec.path else { continue };
        schemas.insert(spec.name.clone(), item_schema(spec));
        paths.insert(format!("{path}/{{id}}"), item_path(spec));
        paths.insert(path.clone(), items_path(spec));
    }
    for (path, page) in pages() {
        paths.insert(path.into(), page);
    }
    let document = json!({
        "openapi": "3.1.0",
        "info": { "title": "Evenkeel", "version": env!("CARGO_PKG_VERSION") },
        "security": [{}, { "bearer": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer", "description": "The password, if there is one" }
            }
        }
    });
    document.to_string()
}

fn problem_schema() -> Value {
    json!({
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": { "type": "string" },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": "string" }
        }
    })
}

/// The schema of an id. Any other id is refused (`IdType::complaint`).
fn id_schema(spec: &Spec) -> Value {
    match spec.id_type {
        IdType::Auto | IdType::Text => json!({ "type": "string", "minLength": 1 }),
        IdType::Integer => {
            json!({ "type": "integer", "format": "int64", "minimum": i64::MIN, "maximum": i64::MAX })
        }
        IdType::Uuid => {
            let digits = "[0-9a-f]";
            let pattern = format!("^{digits}{{8}}-({digits}{{4}}-){{3}}{digits}{{12}}$");
            json!({ "type": "string", "format": "uuid", "pattern": pattern })
        }
        IdType::ObjectId => json!({ "type": "string", "pattern": "^[0-9a-f]{24}$" }),
    }
}

/// The schema of a list of ids. A comma separates ids and cannot be escaped, so only ids without commas form
/// an array.
fn ids_schema(spec: &Spec) -> Value {
    match spec.id_type {
        IdType::Auto | IdType::Text => {
            json!({ "type": "string", "pattern": format!("^[^,]+(,[^,]+){{0,{}}}$", IDS_MAX - 1) })
        }
        _ => json!({ "type": "array", "minItems": 1, "maxItems": IDS_MAX, "items": id_schema(spec) }),
    }
}

fn item_schema(spec: &Spec) -> Value {
    let value = match spec.form {
        Form::Json => json!({}),
        Form::Hash => json!({ "type": "string" }),
    };
    let columns = spec.columns.iter().flatten().map(|column| (column.clone(), value.clone()));
    let properties: Map<String, Value> = columns.collect();
    json!({ "type": "object", "properties": properties, "additionalProperties": value })
}

fn reference(spec: &Spec) -> Value {
    json!({ "$ref": format!("#/components/schemas/{}", spec.name) })
}

fn item_path(spec: &Spec) -> Value {
    let id = json!({ "name": "id", "in": "path", "required": true, "schema": id_schema(spec) });
    let schema = reference(spec);
    let problems = [304, 400, 401, 404, 412, 414, 421, 431, 503, 504];
    let mut get = operation(&format!("An item of {}", spec.name), Some(&schema), &problems);
    let head = operation(&format!("Whether {} has an item", spec.name), None, &problems);
    let headers = &mut get["responses"]["200"]["headers"];
    headers["Cache-Control"] = json!({ "description": freshness(spec), "schema": { "type": "string" } });
    let mut parameters = vec![id, condition()];
    if let Some(column) = &spec.modified {
        let when = format!("The time in {column}, where there is one, if no other change can have it");
        let ignored = "A Last-Modified; ignored beside If-None-Match";
        headers["Last-Modified"] = json!({ "description": when, "schema": { "type": "string" } });
        let since = json!({ "name": "If-Modified-Since", "in": "header", "description": ignored, "schema": { "type": "string" } });
        parameters.push(since);
    }
    json!({ "parameters": parameters, "get": get, "head": head })
}

fn items_path(spec: &Spec) -> Value {
    let ids = json!({
        "name": "ids",
        "in": "query",
        "required": true,
        "style": "form",
        "explode": false,
        "description": "Ids with commas between them; of one that is not there the answer has null in its place",
        "schema": ids_schema(spec)
    });
    let schema = json!({ "type": "array", "items": { "anyOf": [reference(spec), { "type": "null" }] } });
    let problems = [304, 400, 401, 412, 414, 421, 431, 503, 504];
    let get = operation(&format!("Items of {}", spec.name), Some(&schema), &problems);
    let head = operation(&format!("Items of {}", spec.name), None, &problems);
    json!({ "parameters": [ids, condition()], "get": get, "head": head })
}

fn freshness(spec: &Spec) -> String {
    match spec.max_age.as_secs() {
        0 => "no-cache: caches ask each time, with the ETag".into(),
        seconds => format!("max-age of at most {seconds} seconds"),
    }
}

fn condition() -> Value {
    json!({ "name": "If-None-Match", "in": "header", "schema": { "type": "string" } })
}

/// An operation that answers JSON of this schema, or these problems.
fn operation(summary: &str, schema: Option<&Value>, problems: &[u16]) -> Value {
    let mut responses = Map::new();
    let good = match schema {
        Some(schema) => json!({
            "description": "It is there",
            "headers": {
                "ETag": { "schema": { "type": "string" } },
                "Cache-Control": { "schema": { "type": "string" } }
            },
            "content": { "application/json": { "schema": schema } }
        }),
        None => json!({ "description": "It is there" }),
    };
    responses.insert("200".into(), good);
    for status in problems {
        let content =
            json!({ "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } });
        let text = http::response::reason(*status);
        let problem = match (status, schema) {
            (304, _) | (_, None) => json!({ "description": text }),
            _ => json!({ "description": text, "content": content }),
        };
        responses.insert(status.to_string(), problem);
    }
    json!({ "summary": summary, "responses": responses })
}

const READY: &str = "Whether each source could answer at some time, and what cannot now";

fn pages() -> [(&'static str, Value); 5] {
    let state = json!({
        "type": "object",
        "required": ["status"],
        "properties": {
            "status": { "type": "string" },
            "trouble": { "type": "array", "items": { "type": "string" } }
        }
    });
    let health = json!({
        "type": "object",
        "required": ["status", "role"],
        "properties": {
            "status": { "type": "string" },
            "role": { "type": "string", "enum": ["primary", "replica"] },
            "link": { "type": "string", "enum": ["up", "down"] },
            "lag_seconds": { "type": "string" }
        }
    });
    let mut healthz = operation("Whether the process serves, and its role", Some(&health), &[]);
    healthz["security"] = json!([]);
    let metrics = json!({
        "summary": "Figures for Prometheus",
        "responses": {
            "200": {
                "description": "The figures",
                "content": { "text/plain": { "schema": { "type": "string" } } }
            },
            "401": { "description": "Unauthorized" }
        }
    });
    let object = json!({ "type": "object" });
    let root = operation("What the server is, and where to look", Some(&welcome::schema()), &[401, 421]);
    [
        ("/", json!({ "get": root })),
        ("/healthz", json!({ "get": healthz })),
        ("/readyz", json!({ "get": operation(READY, Some(&state), &[401, 421, 503]) })),
        ("/metrics", json!({ "get": metrics })),
        ("/openapi.json", json!({ "get": operation("This description", Some(&object), &[401, 421]) })),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_with_a_path_are_described() {
        let spec = |text: &str| Spec::parse(text.split(' ')).unwrap();
        let shown = spec("items item:{id} sqlite:x id-type integer columns a,b as hash path /items");
        let text = describe(&[&shown, &spec("hidden h:{id} sqlite:x")]);
        let document: Value = serde_json::from_str(&text).unwrap();
        let paths = document["paths"].as_object().unwrap();
        let names: Vec<_> = paths.keys().map(String::as_str).collect();
        assert_eq!(names, ["/items/{id}", "/items", "/", "/healthz", "/readyz", "/metrics", "/openapi.json"]);
        assert_eq!(paths["/items/{id}"]["parameters"][0]["schema"]["type"], "integer");
        let item = &document["components"]["schemas"]["items"];
        assert_eq!(item["properties"]["b"]["type"], "string");
        assert_eq!(paths["/items"]["parameters"][0]["schema"]["items"]["type"], "integer");
        assert!(!text.contains("-Modified") && !text.contains("hidden"));
        let text = describe(&[&spec("t t:{id} sqlite:x path /t modified at")]);
        assert!(text.contains("Last-Modified") && text.contains("If-Modified-Since"));
        assert!(text.contains("no-cache: ") && !text.contains("\"Age\""));
        assert!(describe(&[&spec("t t:{id} sqlite:x path /t max-age 1m")]).contains("at most 60 seconds"));
    }
}
