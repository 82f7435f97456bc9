package page

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// What a page of another site could have a browser send is refused, and counted;
// what people, probes and Prometheus send is answered.
func TestGuard(t *testing.T) {
	header := func(pairs ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(pairs); i += 2 {
			h.Set(pairs[i], pairs[i+1])
		}
		return h
	}
	for name, tc := range map[string]struct {
		method, host string
		header       http.Header
		code         int
		reason       string
	}{
		"by address":                  {"GET", "10.0.0.7:9810", nil, http.StatusOK, ""},
		"by address, IPv6":            {"GET", "[fd00::1]:9810", nil, http.StatusOK, ""},
		"by localhost":                {"GET", "localhost:9810", nil, http.StatusOK, ""},
		"by a name that was given":    {"GET", "Psidecar-Planner.train.svc:9812", nil, http.StatusOK, ""},
		"the same, fully":             {"GET", "psidecar-planner.train.svc.:9812", nil, http.StatusOK, ""},
		"without a name":              {"GET", "", nil, http.StatusOK, ""},
		"head":                        {"HEAD", "localhost:9810", nil, http.StatusOK, ""},
		"its own page asks":           {"GET", "localhost:9810", header("Origin", "http://localhost:9810", "Sec-Fetch-Site", "same-origin"), http.StatusOK, ""},
		"a link that leads here":      {"GET", "localhost:9810", header("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"), http.StatusOK, ""},
		"a name that was rebound":     {"GET", "attacker.example:9810", nil, http.StatusMisdirectedRequest, "host"},
		"a name that begins the same": {"GET", "psidecar-planner.train.svc.attacker.example", nil, http.StatusMisdirectedRequest, "host"},
		"a name that looks like one":  {"GET", "10.0.0.7.attacker.example", nil, http.StatusMisdirectedRequest, "host"},
		"another site's page":         {"GET", "localhost:9810", header("Origin", "https://attacker.example"), http.StatusForbidden, "origin"},
		"another port's page":         {"GET", "localhost:9810", header("Origin", "http://localhost:3000"), http.StatusForbidden, "origin"},
		"a page of nowhere":           {"GET", "localhost:9810", header("Origin", "null"), http.StatusForbidden, "origin"},
		"another site's script":       {"GET", "localhost:9810", header("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"), http.StatusForbidden, "origin"},
		"put":                         {"PUT", "localhost:9810", nil, http.StatusMethodNotAllowed, "method"},
		"post":                        {"POST", "localhost:9810", nil, http.StatusMethodNotAllowed, "method"},
		"preflight":                   {"OPTIONS", "localhost:9810", header("Origin", "https://attacker.example"), http.StatusMethodNotAllowed, "method"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewGuard("psidecar-planner.train.svc")
			asked := false
			h := g.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
			r := httptest.NewRequest(tc.method, "/api/v1/jobs", nil)
			r.Host, r.Header = tc.host, http.Header{}
			if tc.header != nil {
				r.Header = tc.header
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != tc.code || asked != (tc.code == http.StatusOK) {
				t.Errorf("%d: %s", w.Code, w.Body)
			}
			if w.Header().Get("Access-Control-Allow-Origin") != "" {
				t.Error("it lets other sites read the answer")
			}
			registry := prometheus.NewRegistry()
			registry.MustRegister(g)
			families, err := registry.Gather()
			if err != nil || len(families) != 1 || len(families[0].GetMetric()) != 3 {
				t.Fatalf("%v, %v", families, err)
			}
			for _, m := range families[0].GetMetric() {
				if reason, n := m.GetLabel()[0].GetValue(), m.GetCounter().GetValue(); n == 1 != (reason == tc.reason) {
					t.Errorf("%v requests are counted as refused for %s", n, reason)
				}
			}
		})
	}
}

// Where recordings may be opened, that is all that may be posted, and only by this
// page or without one.
func TestGuardOfRecordings(t *testing.T) {
	for name, tc := range map[string]struct {
		method, path, origin string
		opens                bool
		code                 int
	}{
		"opened":                {"POST", recordingsPath, "http://localhost:9816", true, http.StatusOK},
		"opened by a program":   {"POST", recordingsPath, "", true, http.StatusOK},
		"by another site":       {"POST", recordingsPath, "https://attacker.example", true, http.StatusForbidden},
		"something else":        {"POST", "/api/v1/jobs", "http://localhost:9816", true, http.StatusMethodNotAllowed},
		"put":                   {"PUT", recordingsPath, "http://localhost:9816", true, http.StatusMethodNotAllowed},
		"where none are opened": {"POST", recordingsPath, "http://localhost:9816", false, http.StatusMethodNotAllowed},
	} {
		g := NewGuard()
		g.Opens = tc.opens
		h := g.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		r := httptest.NewRequest(tc.method, tc.path, nil)
		r.Host = "localhost:9816"
		if tc.origin != "" {
			r.Header.Set("Origin", tc.origin)
		}
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != tc.code {
			t.Errorf("%s: %d, want %d: %s", name, w.Code, tc.code, w.Body)
		}
	}
}
