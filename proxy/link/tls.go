package link

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path"
	"sync"
	"time"

	"github.com/psidecar/psidecar/planner/api/role"
	"github.com/psidecar/psidecar/proxy/reason"
)

// Files name the PEM files that mutual TLS needs and who may be a peer.
type Files struct {
	Cert, Key, CA string
	// Peers are patterns, as of path.Match, for DNS names and URIs in a
	// peer's certificate ("*.psidecar.svc", "spiffe://cluster/ns/*/sa/psidecar").
	// A peer needs one name that one pattern matches, and then no role; one that
	// has roles, or where there are no patterns, must have that of a proxy.
	Peers []string
}

// Identity is this proxy's certificate and how it judges those of others. The
// files are looked at again when a link is made, at most once a second, and
// read again where they changed; while they cannot be read, what was read last
// stays in use.
type Identity struct {
	files Files

	mu      sync.Mutex
	cert    *tls.Certificate
	roots   *x509.CertPool
	stamps  [3]stamp
	checked time.Time
}

type stamp struct {
	modified time.Time
	size     int64
	inode    any
}

// recheck is how often the files are looked at, at most.
const recheck = time.Second

// LoadIdentity reads the files and checks the patterns.
func LoadIdentity(f Files) (*Identity, error) {
	for _, p := range f.Peers {
		if _, err := path.Match(p, ""); err != nil {
			return nil, fmt.Errorf("peer pattern %q: %w", p, err)
		}
	}
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

// Current returns certificate and roots as the files have them now, for other
// connections than links too.
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

func (i *Identity) client() *tls.Config {
	cert, roots := i.Current()
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{*cert},
		NextProtos:   []string{protocol},
		// A peer is known by its address only, which certificates of proxies
		// do not name; verify does all that is skipped here.
		InsecureSkipVerify: true,
		VerifyConnection:   func(cs tls.ConnectionState) error { return i.verify(cs, roots, x509.ExtKeyUsageServerAuth) },
	}
}

func (i *Identity) server() *tls.Config {
	cert, roots := i.Current()
	return &tls.Config{
		MinVersion:       tls.VersionTLS13,
		Certificates:     []tls.Certificate{*cert},
		NextProtos:       []string{protocol},
		ClientAuth:       tls.RequireAnyClientCert,
		VerifyConnection: func(cs tls.ConnectionState) error { return i.verify(cs, roots, x509.ExtKeyUsageClientAuth) },
		// Resumption would save little and would need the peer judged again.
		SessionTicketsDisabled: true,
	}
}

// protocol is the ALPN name of links.
const protocol = "psidecar/1"

// verify checks a peer's chain and then its names.
func (i *Identity) verify(cs tls.ConnectionState, roots *x509.CertPool, usage x509.ExtKeyUsage) error {
	if len(cs.PeerCertificates) == 0 {
		return reason.Errorf(reason.TLS, "the peer has no certificate")
	}
	if cs.NegotiatedProtocol != protocol {
		return reason.Errorf(reason.TLS, "the peer does not speak %s", protocol)
	}
	leaf := cs.PeerCertificates[0]
	between := x509.NewCertPool()
	for _, c := range cs.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{usage}})
	if err != nil {
		return reason.Errorf(reason.TLS, "the peer's certificate: %w", err)
	}
	if len(i.files.Peers) > 0 && !i.known(leaf) {
		return reason.Errorf(reason.Identity, "the peer's certificate names %q and %v, which no pattern of peers (--tls-peer) matches", leaf.DNSNames, leaf.URIs)
	}
	// An authority signs for others than proxies too.
	if g := role.Of(leaf); !g.Has(role.Proxy) && (len(g) > 0 || len(i.files.Peers) == 0) {
		return reason.Errorf(reason.Identity, "the peer: %w", role.Missing(leaf, g, role.Proxy, "--tls-peer"))
	}
	return nil
}

func (i *Identity) known(leaf *x509.Certificate) bool {
	names := leaf.DNSNames
	for _, u := range leaf.URIs {
		names = append(names[:len(names):len(names)], u.String())
	}
	for _, name := range names {
		for _, pattern := range i.files.Peers {
			if ok, err := path.Match(pattern, name); ok && err == nil {
				return true
			}
		}
	}
	return false
}

// A Key tells certificates' keys apart. The zero Key is that of a plain link.
type Key [sha256.Size]byte

// KeyOf returns the key of the certificate at the other end of a link.
func KeyOf(conn net.Conn) (k Key) {
	t, ok := conn.(*tls.Conn)
	if !ok {
		return k
	}
	if all := t.ConnectionState().PeerCertificates; len(all) > 0 {
		k = sha256.Sum256(all[0].RawSubjectPublicKeyInfo)
	}
	return k
}

// tlsError gives a failed handshake its reason.
func tlsError(err error) error {
	if reason.Has(err) {
		return fmt.Errorf("TLS: %w", err)
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return reason.Errorf(reason.HelloTimeout, "TLS handshake: %w", err)
	}
	if errors.Is(err, io.EOF) || reason.IsReset(err) {
		return reason.Errorf(reason.TLS, "TLS handshake: the peer closed the connection: %w", err)
	}
	return reason.Errorf(reason.TLS, "TLS handshake: %w", err)
}

// alert returns err with its reason where the peer ended the connection by a
// TLS alert: in TLS 1.3 a client hears only after its handshake that its
// certificate was not accepted.
func alert(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		return reason.Errorf(reason.TLS, "the peer does not accept this proxy's certificate: %w", err)
	}
	return nil
}
