// This file is the standby side of a planner: it forwards its callers to the leader. So any planner
// of a Kubernetes Service may be asked, and all are ready, while one of them serves.
//
// Connections pass through a [standbyListener], requests for the page through [standbyPage]. Both
// are forwarded unchanged, TLS included, to the address in the leader's identity
// ([standbyAddress]); so clients authenticate to the leader, and a standby planner can read
// nothing.

package planner

import (
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// A standbyAddress is where the other planners reach a planner. The zero value means nowhere.
type standbyAddress struct {
	// Reports is the address for agents and proxies.
	Reports netip.AddrPort
	// PagePort is the port of the page, at the same IP; 0 for no page.
	PagePort uint16
}

// Page returns the address of the page, invalid if there is none.
func (a standbyAddress) Page() netip.AddrPort {
	if a.PagePort == 0 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.Reports.Addr(), a.PagePort)
}

// Identity returns the identity of a planner in the election: NAME@IP:PORT/PAGE-PORT, or NAME if
// the others do not reach it. The address travels in the Lease, so that planners need no other way
// to find each other.
func (a standbyAddress) Identity(name string) string {
	if !a.Reports.IsValid() {
		return name
	}
	return name + "@" + a.Reports.String() + "/" + strconv.Itoa(int(a.PagePort))
}

// standbyAddressOf returns the address in an identity, the zero value if there is none.
func standbyAddressOf(identity string) standbyAddress {
	_, text, _ := strings.Cut(identity, "@")
	reports, page, _ := strings.Cut(text, "/")
	at, err := netip.ParseAddrPort(reports)
	port, portErr := strconv.ParseUint(page, 10, 16)
	if err != nil || portErr != nil {
		return standbyAddress{}
	}
	return standbyAddress{at, uint16(port)}
}

// sentOn is a header that marks forwarded requests, which no planner forwards again. Two planners
// that take each other for the leader would otherwise pass a request on for ever.
const sentOn = "Psidecar-Sent-On"

// standbyPage serves own, except that all requests are forwarded while to returns the address of
// another planner's page. Requests about this process, its health, readiness and metrics, always
// stay.
func standbyPage(own http.Handler, to func() netip.AddrPort) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leader := to()
		stays := r.URL.Path == "/healthz" || r.URL.Path == "/readyz" || r.URL.Path == "/metrics" || r.Header.Get(sentOn) != ""
		if stays || !leader.IsValid() {
			own.ServeHTTP(w, r)
			return
		}
		forward := httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "http", Host: leader.String()})
			p.Out.Host = p.In.Host
			p.Out.Header.Set(sentOn, "1")
		}}
		forward.ServeHTTP(w, r)
	})
}
