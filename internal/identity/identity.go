// Package identity is a process's side of mutual TLS: the certificate that it
// shows, and the authorities that sign those of its peers, from PEM files that may
// be replaced while it runs.
//
// [Load] reads the files; [ClientCredentials] and [ServerCredentials] make gRPC
// credentials of them. Package link makes the proxies' links of the same files. What
// a peer may do, once its certificate holds, is for packages control and link to say.
// [OpenAuthority] makes such files where there is no authority that does.
package identity

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Files name the PEM files that mutual TLS needs.
type Files struct {
	Cert, Key, CA string
}

// Identity is this process's certificate and the authorities that it trusts. The
// files are looked at again when a connection is made, at most once a second, and
// read again where they changed; while they cannot be read, what was read last
// stays in use. Its methods may be called from any goroutine.
//
// Invariant: cert and roots are of one reading of all three files, whose stamps
// are stamps; they are never nil.
type Identity struct {
	files Files

	mu      sync.Mutex // guards the rest
	cert    *tls.Certificate
	roots   *x509.CertPool
	stamps  [3]stamp
	checked time.Time // when the files were last looked at
}

type stamp struct {
	modified time.Time
	size     int64
	inode    any
}

// recheck is how often the files are looked at, at most.
const recheck = time.Second

// Load reads the files.
func Load(f Files) (*Identity, error) {
	i := &Identity{files: f}
	stamps, err := i.stat()
	if err == nil {
		err = i.load()
	}
	if err != nil {
		return nil, err
	}
	i.stamps, i.checked = stamps, time.Now()
	return i, nil
}

func (i *Identity) stat() (s [3]stamp, err error) {
	for n, name := range []string{i.files.Cert, i.files.Key, i.files.CA} {
		info, err := os.Stat(name)
		if err != nil {
			return s, fmt.Errorf("TLS: %w", err)
		}
		s[n] = stamp{info.ModTime(), info.Size(), inodeOf(info)}
	}
	return s, nil
}

func (i *Identity) load() error {
	cert, err := tls.LoadX509KeyPair(i.files.Cert, i.files.Key)
	if err != nil {
		return fmt.Errorf("TLS: certificate %s with key %s: %w", i.files.Cert, i.files.Key, err)
	}
	pem, err := os.ReadFile(i.files.CA)
	if err != nil {
		return fmt.Errorf("TLS: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return fmt.Errorf("TLS: %s holds no certificate in PEM form", i.files.CA)
	}
	i.cert, i.roots = &cert, roots
	return nil
}

// Current returns certificate and roots as the files have them now.
func (i *Identity) Current() (*tls.Certificate, *x509.CertPool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if time.Since(i.checked) < recheck {
		return i.cert, i.roots
	}
	i.checked = time.Now()
	stamps, err := i.stat()
	if err == nil && stamps == i.stamps {
		return i.cert, i.roots
	}
	if err == nil {
		err = i.load()
	}
	if err != nil {
		slog.Warn("TLS files changed and cannot be used; the ones read before stay in use", "error", err)
		return i.cert, i.roots
	}
	i.stamps = stamps
	slog.Info("TLS files read again", "certificate", i.files.Cert)
	return i.cert, i.roots
}
