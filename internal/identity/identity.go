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
type Identity struct {
	files Files

	mu       sync.Mutex // guards the rest; not held while files are read
	content  *content   // never nil
	checking bool       // a caller of Current checks the files
	checked  time.Time  // when that last began
}

// content is what one reading of all three files gave, and the stamps from just before it.
type content struct {
	cert   *tls.Certificate
	roots  *x509.CertPool
	stamps [3]stamp
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
	c, err := f.readChanged([3]stamp{})
	if err != nil {
		return nil, err
	}
	return &Identity{files: f, content: c, checked: time.Now()}, nil
}

// stat returns the stamps of the three files. They are taken before the files are read, so a
// file that changes in between is read again the next time.
func (f *Files) stat() (s [3]stamp, err error) {
	for n, name := range []string{f.Cert, f.Key, f.CA} {
		info, err := os.Stat(name)
		if err != nil {
			return s, fmt.Errorf("TLS: %w", err)
		}
		s[n] = stamp{info.ModTime(), info.Size(), inodeOf(info)}
	}
	return s, nil
}

// readChanged reads all three files if their stamps differ from before; otherwise it returns nil. A
// certificate that does not fit its key, as in the middle of a replacement, is an error too.
func (f *Files) readChanged(before [3]stamp) (*content, error) {
	stamps, err := f.stat()
	if err != nil || stamps == before {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("TLS: certificate %s with key %s: %w", f.Cert, f.Key, err)
	}
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("TLS: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("TLS: %s holds no certificate in PEM form", f.CA)
	}
	return &content{&cert, roots, stamps}, nil
}

// Current returns the present certificate and roots. Callers must not change them. A caller that
// checks the files may block on them; all others get the previous content meanwhile.
func (i *Identity) Current() (*tls.Certificate, *x509.CertPool) {
	now, check := i.beginCheck()
	if check {
		next, err := i.files.readChanged(now.stamps)
		switch {
		case err != nil:
			slog.Warn("cannot load the changed TLS files; keeping the previous ones", "error", err)
		case next != nil:
			slog.Info("TLS files reloaded", "certificate", i.files.Cert)
			now = next
		}
		i.endCheck(now)
	}
	return now.cert, now.roots
}

// Expires returns until when the present certificate is valid.
func (i *Identity) Expires() time.Time {
	cert, _ := i.Current()
	return cert.Leaf.NotAfter
}

// beginCheck returns the present content. With check the caller has to check the files, and to call
// endCheck.
func (i *Identity) beginCheck() (now *content, check bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.checking || time.Since(i.checked) < recheck {
		return i.content, false
	}
	i.checking, i.checked = true, time.Now()
	return i.content, true
}

// endCheck ends a check with the content that counts from now on.
func (i *Identity) endCheck(c *content) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.checking, i.content = false, c
}
