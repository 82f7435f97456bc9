package client

import (
	"net"
	"net/url"
	"strings"
)

// usualPorts is what listens where, as flags have it by default.
var usualPorts = map[string]string{
	"9810": "an agent's page and interface (--agent)",
	"9811": "where a planner takes reports and orders (--planner)",
	"9812": "a planner's page and interface (--agent)",
	"9813": "a proxy's state (--proxy)",
	"9814": "where proxies link to each other (--mesh-port)",
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
			return "what answers there does not speak HTTP: a page's address is wanted, an agent's (127.0.0.1:9810), a planner's --http (127.0.0.1:9812) or a proxy's --http (127.0.0.1:9813)" + atPort(address)
		}
	}
	if strings.Contains(text, "server gave HTTP response to HTTPS client") {
		return "what answers there speaks HTTP without TLS: write http://"
	}
	return ""
}

// PlannerProblem is what gRPC says of a planner that cannot be asked, and what may be
// the matter.
func PlannerProblem(address, text string) string {
	for _, sign := range []string{"server preface", "HTTP/1.1 header", "unexpected HTTP status code", "unexpected content-type"} {
		if strings.Contains(text, sign) {
			return text + ": what answers there is no planner's --listen (127.0.0.1:9811 by default), where it takes reports and orders" + atPort(address)
		}
	}
	if _, cause, ok := strings.Cut(text, "Error while dialing: "); ok {
		return "nobody answers there (does a planner run, and is that its --listen" + atPort(address) + "?): " + strings.TrimRight(cause, `"`)
	}
	return text
}
