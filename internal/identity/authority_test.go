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
)

// handshake has a server and a client with the certificates of two folders talk.
func handshake(t *testing.T, server, client, name string) error {
	t.Helper()
	config := func(dir string) *tls.Config {
		cert, err := tls.LoadX509KeyPair(filepath.Join(dir, CertFile), filepath.Join(dir, KeyFile))
		if err != nil {
			t.Fatal(err)
		}
		ca, err := os.ReadFile(filepath.Join(dir, CAFile))
		if err != nil {
			t.Fatal(err)
		}
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
	if err := a.Issue(one, []string{"one", "198.18.0.1"}, nil, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := again.Issue(two, []string{"two"}, nil, time.Minute); err != nil {
		t.Fatal(err)
	}
	other, err := OpenAuthority(stranger, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Issue(stranger, []string{"one"}, nil, time.Minute); err != nil {
		t.Fatal(err)
	}
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
	a, err := OpenAuthority(dir, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Issue(filepath.Join(dir, "x"), []string{"x"}, nil, 2*time.Hour); err == nil || !strings.Contains(err.Error(), "outlive") {
		t.Errorf("a certificate that outlives its authority: %v", err)
	}
	if err := a.Issue(filepath.Join(dir, "x"), nil, nil, time.Minute); err == nil {
		t.Error("a certificate without a name")
	}
	if err := os.Remove(filepath.Join(dir, CAKeyFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenAuthority(dir, time.Hour); err == nil || !strings.Contains(err.Error(), "not whole") {
		t.Errorf("an authority without a key: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, CAKeyFile), []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenAuthority(dir, time.Hour); err == nil || !strings.Contains(err.Error(), "no ec private key") {
		t.Errorf("rubbish for a key: %v", err)
	}
}
