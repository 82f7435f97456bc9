// Package certs issues certificates for tests of TLS: names and validity in, PEM files out.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/identity"
	"github.com/psidecar/psidecar/test/require"
)

// Authority signs certificates.
type Authority struct {
	File string // its certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Files are the PEM files that a peer needs.
type Files struct{ Cert, Key, CA string }

// NewAuthority returns an authority that is valid for an hour.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der := require.Value(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	cert := require.Value(x509.ParseCertificate(der))(t)
	a := &Authority{filepath.Join(t.TempDir(), "ca.pem"), cert, key}
	write(t, a.File, "CERTIFICATE", der)
	return a
}

// Parts are the roles of all parts of psidecar, on any host; none of an operator.
var Parts = []string{identity.RoleURI(identity.AgentRole, identity.AnyHost).String(), identity.RoleURI(identity.ProxyRole, identity.AnyHost).String(), identity.RoleURI(identity.PlannerRole, identity.AnyHost).String()}

// Issue writes a certificate for a DNS name or address and URIs, valid from two hours ago
// until a time, with its key, into a folder.
func (a *Authority) Issue(t testing.TB, folder, name string, until time.Time, uris ...string) Files {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	for _, uri := range uris {
		u := require.Value(url.Parse(uri))(t)
		template.URIs = append(template.URIs, u)
	}
	der := require.Value(x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key))(t)
	keyDER := require.Value(x509.MarshalECPrivateKey(key))(t)
	f := Files{Cert: filepath.Join(folder, "cert.pem"), Key: filepath.Join(folder, "key.pem"), CA: a.File}
	write(t, f.Cert, "CERTIFICATE", der)
	write(t, f.Key, "EC PRIVATE KEY", keyDER)
	return f
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key := require.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	return key
}

func write(t testing.TB, file, kind string, der []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}
