package client

import (
	"net"
	"net/url"
	"strings"
)

// usualPorts is what listens where, as flags have it by default.
var usualPorts = map[string]string{
	"9810": "an agent's HTTP endpoint (--agent)",
	"9811": "a planner's API (--planner)",
	"9812": "a planner's HTTP endpoint (--agent)",
	"9813": "a proxy's HTTP endpoint (--proxy)",
	"9814": "a proxy's mesh port (--mesh-port)",
}

// atPort names the service that usually listens at an address's port, where it is
// known.
func atPort(address string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		address = u.Host
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil || usualPorts[port] == "" {
		return ""
	}
	return "; " + port + " is usually " + usualPorts[port]
}

// notHTTP says what may be the matter where something else than HTTP answers; empty:
// it is not that.
func notHTTP(address string, err error) string {
	text := err.Error()
	for _, sign := range []string{"malformed HTTP", "EOF", "connection reset", "transport connection broken", "readLoopPeekFail"} {
		if strings.Contains(text, sign) {
			return "the server there does not speak HTTP: use the --http address of an agent (127.0.0.1:9810), a planner (127.0.0.1:9812) or a proxy (127.0.0.1:9813)" + atPort(address)
		}
	}
	if strings.Contains(text, "server gave HTTP response to HTTPS client") {
		return "the server there speaks HTTP without TLS: use http://"
	}
	return ""
}

// PlannerProblem is what gRPC says of a planner that cannot be asked, and what may be
// the matter.
func PlannerProblem(address, text string) string {
	for _, sign := range []string{"server preface", "HTTP/1.1 header", "unexpected HTTP status code", "unexpected content-type"} {
		if strings.Contains(text, sign) {
			return text + ": the server there is not a planner's --listen address (127.0.0.1:9811 by default)" + atPort(address)
		}
	}
	if _, cause, ok := strings.Cut(text, "Error while dialing: "); ok {
		return "no response (is a planner running, and is this its --listen address" + atPort(address) + "?): " + strings.TrimRight(cause, `"`)
	}
	return text
}
