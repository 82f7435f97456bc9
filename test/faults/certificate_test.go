package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/certs"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// The proxies' certificate expires while the job trains. Links that are there go
// on; when a proxy is killed the new ones fail, and connections go direct, which
// is said, or, with --mesh-only, wait. A new certificate by file mends it.
func TestCertificateExpired(t *testing.T) {
	for _, c := range []struct {
		name     string
		meshOnly bool
	}{{"direct", false}, {"mesh only", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			authority := certs.NewAuthority(t, "mesh")
			dir := folder(t)
			issue := func(until time.Time) certs.Files {
				// Written aside and renamed: proxies see one whole or the other.
				aside := authority.Issue(t, t.TempDir(), "proxy.mesh", until)
				files := certs.Files{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), CA: filepath.Join(dir, "ca.pem")}
				for from, to := range map[string]string{aside.Cert: files.Cert, aside.Key: files.Key, aside.CA: files.CA} {
					require.NoError(t, publish(from, to))
				}
				return files
			}
			files := issue(time.Now().Add(time.Hour))
			args := []string{"--tls-cert", files.Cert, "--tls-key", files.Key, "--tls-ca", files.CA, "--tls-peer", "*.mesh"}
			if c.meshOnly {
				args = append(args, "--mesh-only")
			}
			f := newFleet(t, config{proxyArgs: args})
			r := f.start(f.counting(400, resending...))
			r.training()
			f.reads(issue, time.Now().Add(-time.Minute))
			victim := f.sidecars[1]
			old := victim.proxy.Current()
			victim.proxy.kill()
			f.await("another proxy", func() error { return victim.proxy.runs(old) })
			f.ready(victim)
			f.await("links that fail for their certificate", func() error {
				if n := f.state(victim).Errors["tls"]; n == 0 {
					return errors.New("there are none")
				}
				return nil
			})
			f.await("word of that", func() error { return f.plain(victim, c.meshOnly) })
			f.reads(issue, time.Now().Add(time.Hour))
			r.exact()
			for _, s := range f.sidecars {
				if s.proxy != victim.proxy && s.proxy.Current() == nil {
					t.Errorf("%s is not running", s.proxy)
				}
			}
			f.asBefore()
		})
	}
}

// reads issues a certificate, and waits until all proxies use it.
func (f *fleet) reads(issue func(until time.Time) certs.Files, until time.Time) {
	issue(until)
	for _, s := range f.sidecars {
		f.await("a proxy with the new certificate", func() error {
			n, err := hoststest.Metric(s.host, proxyHTTP, "psidecar_proxy_certificate_expiry_timestamp_seconds")
			if err == nil && int64(n) != until.Unix() {
				err = fmt.Errorf("its certificate is valid until %v", time.Unix(int64(n), 0))
			}
			return err
		})
	}
}

// plain is an error unless the proxy has said, or in a mesh-only one has not
// had to say, that connections of a fleet with TLS go past it.
func (f *fleet) plain(s *sidecar, meshOnly bool) error {
	n, err := hoststest.Metric(s.host, proxyHTTP, `psidecar_proxy_past_mesh_total{reason="tls"}`)
	if err != nil {
		return err
	}
	said := s.proxy.logged("are unprotected")
	switch {
	case meshOnly && (n > 0 || said):
		f.t.Errorf("%v connections went past the mesh", n)
	case meshOnly:
		if f.state(s).Errors["no_peer"] == 0 {
			return errors.New("nothing was refused")
		}
	case n == 0 || !said:
		return fmt.Errorf("%v connections went past the mesh, said: %v", n, said)
	}
	return nil
}

// publish puts a file in the place of another, readable by everybody.
func publish(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to+".new", text, 0o644); err != nil {
		return err
	}
	return os.Rename(to+".new", to)
}
