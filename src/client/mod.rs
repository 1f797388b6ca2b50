//! The client: typed calls on the API over two transports (in-process, JSON-RPC).
