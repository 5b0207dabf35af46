//! Lists and watches of any content, in any pieces.

use std::convert::Infallible;

use axum::body::Body as AxumBody;
use futures::stream;
use http::Request;
use kube::Client;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{client::live, testing::fuzz::cases};

/// Passes an answer to a reader in pieces of these lengths, repeated as needed.
fn arriving<T>(bytes: &[u8], lengths: &[usize], read: impl AsyncFnOnce(Incoming) -> T) -> T {
    let (mut rest, mut pieces, mut turn) = (bytes, Vec::new(), 0);
    while !rest.is_empty() {
        let (piece, left) = rest.split_at(lengths[turn % lengths.len()].clamp(1, rest.len()));
        pieces.push(Bytes::copy_from_slice(piece));
        (rest, turn) = (left, turn + 1);
    }
    let service = tower::service_fn(move |_: Request<Body>| {
        let pieces = stream::iter(pieces.clone().into_iter().map(Ok::<_, Infallible>));
        std::future::ready(Ok::<_, Infallible>(Response::new(AxumBody::from_stream(pieces))))
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let client = Client::new(service, "default");
        let request = Request::get("/things").body(Body::empty()).unwrap();
        read(live::open(&client, request).await.unwrap()).await
    })
}

/// The objects of a list, with its revision; `None` if it is no list.
fn page(bytes: &[u8], lengths: &[usize]) -> Option<(Vec<Vec<u8>>, ResourceVersion, String)> {
    let mut objects = Vec::new();
    let each = |object: Option<&[u8]>| objects.extend(object.map(<[u8]>::to_vec));
    let page = arriving(bytes, lengths, async |incoming| incoming.page(each).await).ok()?;
    Some((objects, page.revision, page.next))
}

/// The lines of a watch; an incomplete or too long one is `None`.
fn lines(bytes: &[u8], lengths: &[usize]) -> Vec<Option<Vec<u8>>> {
    let keep = |line: Line<'_>| match line {
        Line::Whole(line) => Some(line.to_vec()),
        Line::Half | Line::TooLong => None,
    };
    arriving(bytes, lengths, async |mut incoming| {
        let mut lines = Vec::new();
        while let Some(line) = incoming.line(keep).await.unwrap() {
            lines.push(line);
        }
        lines
    })
}

fn lengths() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(1usize..40, 1..6)
}

fn any_json() -> impl Strategy<Value = Value> {
    let text = "[a-z\\\\\"\\[\\]{},: \u{e9}\u{1f6a2}]{0,8}|items|metadata";
    let leaf = prop_oneof![Just(Value::Null), any::<i64>().prop_map(Value::from), text.prop_map(Value::from)];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(text, inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn any_list_is_read_object_by_object(objects in proptest::collection::vec(any_json(), 0..5), lengths in lengths(), pretty: bool) {
        let list = json!({"kind": "List", "metadata": {"resourceVersion": "7", "continue": "c"}, "items": objects, "more": objects});
        let text = if pretty { serde_json::to_string_pretty(&list).unwrap() } else { list.to_string() };
        let (read, revision, next) = page(text.as_bytes(), &lengths).unwrap();
        let read: Vec<Value> = read.iter().map(|object| serde_json::from_slice(object).unwrap()).collect();
        prop_assert_eq!(read, objects);
        prop_assert_eq!((revision.to_string(), next), ("7".to_owned(), "c".to_owned()));
    }

    #[test]
    fn any_bytes_are_read_alike_in_any_pieces(
        bytes in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..300),
            "[\\[\\]{}\",:a-z\\\\\n ]{0,300}".prop_map(String::into_bytes),
            "\\{\"items\":\\[[\\[\\]{}\",:a-z\\\\\n ]{0,100}".prop_map(String::into_bytes),
        ],
        lengths in lengths(),
    ) {
        let whole = [bytes.len().max(1)];
        prop_assert_eq!(page(&bytes, &lengths), page(&bytes, &whole));
        let read = lines(&bytes, &lengths);
        prop_assert_eq!(&read, &lines(&bytes, &whole));
        let newlines = bytes.iter().filter(|byte| **byte == b'\n').count();
        prop_assert_eq!(read.iter().filter(|line| line.is_some()).count(), newlines);
        prop_assert_eq!(arriving(&bytes, &lengths, async |incoming| incoming.whole().await).unwrap(), bytes);
    }
}
