package identity

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// handshake has a server and a client with the certificates of two folders talk.
func handshake(t *testing.T, server, client, name string) error {
	t.Helper()
	config := func(dir string) *tls.Config {
		cert := require.Value(tls.LoadX509KeyPair(filepath.Join(dir, CertFile), filepath.Join(dir, KeyFile)))(t)
		ca := require.Value(os.ReadFile(filepath.Join(dir, CAFile)))(t)
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca)
		return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, RootCAs: roots, ClientCAs: roots,
			ClientAuth: tls.RequireAndVerifyClientCert, ServerName: name}
	}
	near, far := net.Pipe()
	ended := make(chan error, 1)
	go func() {
		s := tls.Server(far, config(server))
		_, err := s.Write([]byte("x"))
		far.Close()
		ended <- err
	}()
	c := tls.Client(near, config(client))
	_, err := io.ReadFull(c, make([]byte, 1))
	near.Close()
	if other := <-ended; err == nil {
		err = other
	}
	return err
}

func TestCertificatesOfOneAuthorityFit(t *testing.T) {
	dir := t.TempDir()
	a, err := OpenAuthority(dir, time.Hour)
	if err != nil || !a.Made {
		t.Fatal(err, a)
	}
	again, err := OpenAuthority(dir, time.Hour)
	if err != nil || again.Made {
		t.Fatal(err, again)
	}
	one, two, stranger := filepath.Join(dir, "one"), filepath.Join(dir, "two"), t.TempDir()
	require.NoError(t, a.Issue(one, []string{"one", "198.18.0.1"}, nil, time.Minute))
	require.NoError(t, again.Issue(two, []string{"two"}, nil, time.Minute))
	other := require.Value(OpenAuthority(stranger, time.Hour))(t)
	require.NoError(t, other.Issue(stranger, []string{"one"}, nil, time.Minute))
	for _, name := range []string{"one", "198.18.0.1"} {
		if err := handshake(t, one, two, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := handshake(t, one, two, "two"); err == nil {
		t.Error("a certificate for another name is taken")
	}
	if err := handshake(t, one, stranger, "one"); err == nil {
		t.Error("a certificate of another authority is taken")
	}
	info, err := os.Stat(filepath.Join(one, KeyFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's mode is %v, %v", info.Mode(), err)
	}
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	a := require.Value(OpenAuthority(dir, time.Hour))(t)
	if err := a.Issue(filepath.Join(dir, "x"), []string{"x"}, nil, 2*time.Hour); err == nil || !strings.Contains(err.Error(), "outlive") {
		t.Errorf("a certificate that outlives its authority: %v", err)
	}
	if err := a.Issue(filepath.Join(dir, "x"), nil, nil, time.Minute); err == nil {
		t.Error("a certificate without a name")
	}
	require.NoError(t, os.Remove(filepath.Join(dir, CAKeyFile)))
	if _, err := OpenAuthority(dir, time.Hour); err == nil || !strings.Contains(err.Error(), "not whole") {
		t.Errorf("an authority without a key: %v", err)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, CAKeyFile), []byte("rubbish"), 0o600))
	if _, err := OpenAuthority(dir, time.Hour); err == nil || !strings.Contains(err.Error(), "no ec private key") {
		t.Errorf("rubbish for a key: %v", err)
	}
}
