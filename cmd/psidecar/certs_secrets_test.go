package main

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/psidecar/psidecar/internal/identity"
)

// secretServer is the part of an API server that has the Secrets of a namespace.
type secretServer struct {
	mu    sync.Mutex
	have  map[string]map[string][]byte // guarded by mu
	calls []string                     // changes; guarded by mu
}

func (s *secretServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const folder = "/api/v1/namespaces/ads/secrets"
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, folder), "/")
	var body struct {
		Metadata struct{ Name, Namespace string }
		Data     map[string][]byte
	}
	if text, err := io.ReadAll(r.Body); err != nil || len(text) > 0 && json.Unmarshal(text, &body) != nil || !strings.HasPrefix(r.URL.Path, folder) {
		http.Error(w, fmt.Sprintf("%s %s: %v", r.Method, text, err), http.StatusBadRequest)
		return
	}
	fail := func(code int, reason string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code)
	}
	_, there := s.have[name+body.Metadata.Name]
	switch {
	case r.Method == http.MethodPost && there:
		fail(http.StatusConflict, "AlreadyExists")
	case r.Method != http.MethodPost && s.have[name] == nil:
		fail(http.StatusNotFound, "NotFound")
	case r.Method == http.MethodGet:
		json.NewEncoder(w).Encode(map[string]any{"kind": "Secret", "apiVersion": "v1", "data": s.have[name]})
	default:
		s.have[body.Metadata.Name] = body.Data
		s.calls = append(s.calls, r.Method+" "+body.Metadata.Name)
		fmt.Fprint(w, `{"kind":"Secret","apiVersion":"v1"}`)
	}
}

// changes returns what was made and replaced since the last call.
func (s *secretServer) changes() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := strings.Join(s.calls, ", ")
	s.calls = nil
	return all
}

// TestCertsInSecrets: certificates in Secrets are of one CA, stay while they are good, and are
// issued again when they end soon, or when names or CA are others.
func TestCertsInSecrets(t *testing.T) {
	s := &secretServer{have: map[string]map[string][]byte{}}
	api := httptest.NewServer(s)
	defer api.Close()
	config := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(config, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":%q}}],`+
		`"contexts":[{"name":"c","context":{"cluster":"c","namespace":"ads"}}]}`, api.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", config)
	keep := func(want string, args ...string) {
		t.Helper()
		args = append([]string{"certs", "--out", t.TempDir(), "--ca-secret", "p-ca", "--secret"}, args...)
		code, stdout, stderr := runTest(t, nil, args...)
		if got := s.changes(); code != 0 || got != want {
			t.Errorf("%q: changes %q, want %q; %d, %s%s", args, got, want, code, stdout, stderr)
		}
	}
	agent := []string{"p-agent", "--any-host", "--role", "agent", "--host", "psidecar-agent"}
	keep("POST p-ca, POST p-agent", agent...)
	keep("POST p-planner", "p-planner", "--planner", "planner.ads.svc")
	keep("", agent...)
	keep("PUT p-agent", append(agent, "--valid", "30000h")...) // less than a third is left
	keep("", append(agent, "--valid", "30000h")...)
	keep("PUT p-planner", "p-planner", "--planner", "planner.other.svc")
	keep("PUT p-agent", "p-agent", "--any-host", "--role", "agent,proxy", "--host", "psidecar-agent")

	s.mu.Lock()
	held := maps.Clone(s.have)
	s.mu.Unlock()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(held["p-ca"][identity.CAFile])
	for _, name := range []string{"p-agent", "p-planner"} {
		block, _ := pem.Decode(held[name][identity.CertFile])
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cert.Verify(x509.VerifyOptions{Roots: pool}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(held[name][identity.KeyFile]) == 0 || !bytes.Equal(held[name][identity.CAFile], held["p-ca"][identity.CAFile]) {
			t.Errorf("%s lacks its key or the CA", name)
		}
	}

	s.mu.Lock()
	delete(s.have, "p-ca")
	s.mu.Unlock()
	keep("POST p-ca, PUT p-agent", "p-agent", "--any-host", "--role", "agent,proxy", "--host", "psidecar-agent")

	for want, args := range map[string][]string{
		"set both":        {"--secret", "a", "--host", "a"},
		"one certificate": {"--secret", "a", "--ca-secret", "b", "--host", "a", "--host", "b"},
	} {
		if code, _, stderr := runTest(t, nil, append([]string{"certs", "--out", t.TempDir()}, args...)...); code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%q: %d, %s", args, code, stderr)
		}
	}
}
