// This file is the standby side of a planner: it forwards its callers to the
// leader. So any planner of a Service may be asked, and all are ready, while one of
// them serves.
//
// In come connections, by a [standbyListener], and requests for the page, by [standbyPage].
// They go on as they are, TLS included, to where the leader's identity says
// that it is ([standbyAddress]). The command psidecar planner calls it.

package planner

import (
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// An standbyAddress is where a planner is reached by the others. The zero value says
// that they cannot.
type standbyAddress struct {
	Reports  netip.AddrPort // by agents and proxies
	PagePort uint16         // by people, at the same IP; 0: no page
}

// standbyPage returns where the page is; not valid where there is none.
func (a standbyAddress) Page() netip.AddrPort {
	if a.PagePort == 0 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.Reports.Addr(), a.PagePort)
}

// Identity returns what a planner of that name is called in the contest for the
// lead: NAME@IP:PORT/PAGE-PORT, or NAME where others do not reach it.
func (a standbyAddress) Identity(name string) string {
	if !a.Reports.IsValid() {
		return name
	}
	return name + "@" + a.Reports.String() + "/" + strconv.Itoa(int(a.PagePort))
}

// standbyAddressOf returns the address that an identity has; the zero value where it
// has none.
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

// sentOn marks requests that a planner has sent on: no other does it again.
const sentOn = "Psidecar-Sent-On"

// standbyPage serves own, but while to names another planner's page, all requests but
// those about this process (its health, readiness and metrics) are forwarded to it.
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
