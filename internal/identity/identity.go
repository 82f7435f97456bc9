// Package identity is a process's side of mutual TLS: the certificate that it presents, and the
// authorities that it trusts, from PEM files that may be replaced while it runs.
//
// [Load] reads the files; [ClientCredentials] and [ServerCredentials] make gRPC credentials of
// them. Package proxy/link uses the same files for links between proxies. Which roles a
// certificate has is in role.go; what a role may do is decided by packages control and link.
// [OpenAuthority] creates such files where there is no authority.
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

// Files are the paths of the PEM files for mutual TLS.
type Files struct {
	Cert, Key, CA string
}

// An Identity is this process's certificate and the authorities that it trusts. The files are
// checked when a connection is made, at most once a second, and read again if they changed.
// While they cannot be read, the previous content stays in use. Its methods may be called from
// any goroutine.
//
// Invariant: cert and roots come from one reading of all three files, whose stamps are stamps;
// they are never nil.
type Identity struct {
	files Files

	mu      sync.Mutex // guards the rest
	cert    *tls.Certificate
	roots   *x509.CertPool
	stamps  [3]stamp
	checked time.Time // when the files were last checked
}

// stamp identifies the content of a file without reading it.
type stamp struct {
	modified time.Time
	size     int64
	inode    any
}

// recheck is the least interval between checks of the files.
const recheck = time.Second

// Load reads the files. All three must exist and fit together.
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

// stat returns the stamps of the three files. They are taken before the files are read, so a
// file that changes in between is read again the next time.
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

// load reads all three files, and changes nothing if one of them is invalid. A certificate that
// does not fit its key, as in the middle of a replacement, is an error too.
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

// Current returns the present certificate and roots. Callers must not change them. It may block
// on the files.
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
		slog.Warn("cannot load the changed TLS files; keeping the previous ones", "error", err)
		return i.cert, i.roots
	}
	i.stamps = stamps
	slog.Info("TLS files reloaded", "certificate", i.files.Cert)
	return i.cert, i.roots
}
