// Package api is how agents, proxies and the planner talk: gRPC services
// described in planner.proto (what agents report), plans.proto (where keys live
// and who moves them) and codecs.proto (what becomes of their values), from
// which the rest of the package is made.
//
// Making it needs protoc (Debian: protobuf-compiler).
package api

// DefaultSocket is the unix socket at which a planner takes calls of its host by default.
const DefaultSocket = "/run/psidecar-planner/planner.sock"

//go:generate sh -c "protoc --plugin=protoc-gen-go=$(go tool -n protoc-gen-go) --plugin=protoc-gen-go-grpc=$(go tool -n protoc-gen-go-grpc) --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative planner.proto plans.proto codecs.proto"
