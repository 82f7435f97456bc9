package page

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// A Guard admits only requests that read, and that a page of another site cannot have made.
// Without it, any page open in a browser could point its own name at this host's address (DNS
// rebinding) and read everything that is served here as if it were its own.
type Guard struct {
	// Opens admits POST requests that open a recording, which change nothing else.
	Opens bool

	names []string // accepted besides addresses
	// By reason.
	refused [len(guardReasons)]atomic.Uint64
}

// Reasons for refusing a request.
const (
	guardMethod = iota
	guardHost
	guardOrigin
)

// guardReasons are the values of the metric's label.
var guardReasons = [...]string{guardMethod: "method", guardHost: "host", guardOrigin: "origin"}

// NewGuard returns a guard that accepts these names of the host, localhost, the hostname, and
// any address: a page's origin is never an address that is not its own.
func NewGuard(names ...string) *Guard {
	g := &Guard{names: append([]string{"localhost"}, names...)}
	if own, err := os.Hostname(); err == nil {
		short, _, _ := strings.Cut(own, ".")
		g.names = append(g.names, own, short)
	}
	return g
}

// Handler returns h behind the guard.
func (g *Guard) Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		why, code, text := g.judge(r)
		if code == 0 {
			h.ServeHTTP(w, r)
			return
		}
		g.refused[why].Add(1)
		slog.Debug("request refused", "reason", guardReasons[why], "from", r.RemoteAddr, "host", r.Host, "origin", r.Header.Get("Origin"), "path", r.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		// Not by writeJSON: a foreign page must not be able to tell what is served here.
		if err := json.NewEncoder(w).Encode(map[string]string{"error": text}); err != nil {
			slog.Debug("sending a refusal", "error", err)
		}
	})
}

// judge returns why a request is refused; code is 0 if it is not.
func (g *Guard) judge(r *http.Request) (why, code int, text string) {
	host := hostOf(r.Host)
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead && !(g.Opens && r.Method == http.MethodPost && r.URL.Path == recordingsPath):
		return guardMethod, http.StatusMethodNotAllowed, "this endpoint is read-only; make changes with psidecar plan or the proxy's control socket"
	// A browser that was led here by a foreign name sends that name. This is what stops DNS
	// rebinding.
	case !g.own(host):
		return guardHost, http.StatusMisdirectedRequest, fmt.Sprintf("%.200q is not a known name of this host: use its address, or add the name with --http-name", host)
	}
	// Browsers send an origin with requests that scripts of other sites make. Tools send none.
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || !strings.EqualFold(u.Host, r.Host) {
			return guardOrigin, http.StatusForbidden, "cross-site requests are not allowed"
		}
	}
	// Navigation is allowed: a link on another site may lead here, since that site cannot read
	// what is then shown.
	if site := r.Header.Get("Sec-Fetch-Site"); (site == "cross-site" || site == "same-site") && r.Header.Get("Sec-Fetch-Mode") != "navigate" {
		return guardOrigin, http.StatusForbidden, "cross-site requests are not allowed"
	}
	return 0, 0, ""
}

// hostOf returns a Host header without its port.
func hostOf(header string) string {
	u := url.URL{Host: header}
	return strings.TrimSuffix(u.Hostname(), ".")
}

// own reports whether a host name is one of this host's. HTTP/1.0 sends none.
func (g *Guard) own(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil || host == "" { // HTTP/1.0 asks without
		return true
	}
	return slices.ContainsFunc(g.names, func(name string) bool { return strings.EqualFold(name, host) })
}

// descGuarded describes the metric of all guards of a process.
var descGuarded = prometheus.NewDesc("psidecar_http_refused_total", "Refused HTTP requests: method (would make a change), host (not a name of this host), origin (cross-site).", []string{"reason"}, nil)

// Describe implements prometheus.Collector.
func (g *Guard) Describe(out chan<- *prometheus.Desc) { out <- descGuarded }

// Collect implements prometheus.Collector.
func (g *Guard) Collect(out chan<- prometheus.Metric) {
	for why, word := range guardReasons {
		out <- prometheus.MustNewConstMetric(descGuarded, prometheus.CounterValue, float64(g.refused[why].Load()), word)
	}
}
