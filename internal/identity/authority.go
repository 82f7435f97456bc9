// This file creates what mutual TLS needs where there is no certificate authority: an
// authority, and a certificate with its key for each host, as PEM files. Keys are ECDSA on
// P-256. psidecar certs uses it.

package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Names of the files, as in Kubernetes' secrets of type tls.
const (
	CAFile    = "ca.crt"
	CAKeyFile = "ca.key"
	CertFile  = "tls.crt"
	KeyFile   = "tls.key"
)

// An Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
	// Made says that it was created now rather than read from the folder.
	Made bool
}

// skew is how far the clocks of hosts may differ: certificates are valid from that long ago.
const skew = 10 * time.Minute

// OpenAuthority reads the authority in a folder, or creates one that is valid for so long if
// there is none. A folder with a certificate but no key, or the reverse, is an error: nothing
// is ever overwritten.
func OpenAuthority(dir string, valid time.Duration) (*Authority, error) {
	certPEM, certErr := os.ReadFile(filepath.Join(dir, CAFile))
	keyPEM, keyErr := os.ReadFile(filepath.Join(dir, CAKeyFile))
	switch {
	case errors.Is(certErr, fs.ErrNotExist) && errors.Is(keyErr, fs.ErrNotExist):
		return createAuthority(dir, valid)
	case certErr != nil || keyErr != nil:
		return nil, fmt.Errorf("the authority in %s is not whole: %w", dir, errors.Join(certErr, keyErr))
	}
	// An authority that was not made by psidecar is welcome too, if its key has this form.
	cert, err := parsePEM(certPEM, "CERTIFICATE", x509.ParseCertificate)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, CAFile), err)
	}
	key, err := parsePEM(keyPEM, "EC PRIVATE KEY", x509.ParseECPrivateKey)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, CAKeyFile), err)
	}
	// Go would sign with a certificate that is no authority's too, and peers would refuse what
	// it has signed.
	if !cert.IsCA || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("%s: certificate and key are not those of one authority", dir)
	}
	return &Authority{cert: cert, key: key, pem: certPEM}, nil
}

// parsePEM parses the first block of a PEM file, which must be of the given kind.
func parsePEM[T any](text []byte, kind string, read func([]byte) (T, error)) (v T, err error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != kind {
		return v, fmt.Errorf("holds no %s in PEM form", strings.ToLower(kind))
	}
	return read(block.Bytes)
}

// createAuthority creates a self-signed authority, which may sign certificates of hosts but no
// further authorities. The key is written before the certificate: a folder with the certificate
// is complete.
func createAuthority(dir string, valid time.Duration) (*Authority, error) {
	template, key, err := draftCertificate("psidecar authority", valid)
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("making an authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("making an authority: %w", err)
	}
	a := &Authority{cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Made: true}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := writeKey(filepath.Join(dir, CAKeyFile), key); err != nil {
		return nil, err
	}
	return a, writeNew(filepath.Join(dir, CAFile), a.pem, 0o644)
}

// draftCertificate returns an unsigned certificate and its new key.
func draftCertificate(name string, valid time.Duration) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making a key: %w", err)
	}
	// Random rather than counted, since nothing but the files is kept between runs. 127 bits
	// stay positive and within the 20 octets that RFC 5280 allows.
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("choosing a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name, Organization: []string{"psidecar"}},
		NotBefore: now.Add(-skew), NotAfter: now.Add(valid),
	}, key, nil
}

// Issue writes a certificate, its key and the authority's certificate to a folder. names are
// DNS names or IP addresses; grants are the roles. Existing files are replaced, first the key
// and then the certificate: psidecar reads both again when the certificate changes, and must
// not combine a new certificate with an old key.
func (a *Authority) Issue(dir string, names []string, grants Grants, valid time.Duration) error {
	if len(names) == 0 {
		return errors.New("a certificate needs a name")
	}
	// Peers check the whole chain, so it would end with the authority, earlier than it says.
	if until := time.Now().Add(valid); until.After(a.cert.NotAfter) {
		return fmt.Errorf("a certificate for %s would outlive its CA, which expires on %s", names[0], a.cert.NotAfter.Format(time.DateOnly))
	}
	template, key, err := draftCertificate(names[0], valid)
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	// Every host is both: agents and planner serve, and they call each other.
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, name := range names {
		// Verification looks for an address among the addresses only, never among the names.
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	for _, g := range grants {
		template.URIs = append(template.URIs, RoleURI(g.Role, g.Name))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return fmt.Errorf("signing for %s: %w", names[0], err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return errors.Join(
		writeKey(filepath.Join(dir, KeyFile), key),
		writeNew(filepath.Join(dir, CAFile), a.pem, 0o644),
		writeNew(filepath.Join(dir, CertFile), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644),
	)
}

// writeKey writes a key that only its owner may read.
func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("writing a key: %w", err)
	}
	return writeNew(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

// writeNew replaces a file atomically.
func writeNew(path string, text []byte, mode fs.FileMode) error {
	// In the same folder, since a file can only be renamed within a file system. CreateTemp
	// gives it mode 0600, so a key is never readable by others, not even for a moment.
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}
