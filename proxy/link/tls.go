package link

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"slices"

	"github.com/psidecar/psidecar/internal/identity"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/proxy/relay"
)

// Files are the PEM files of mutual TLS, and the peers that are accepted.
type Files struct {
	identity.Files
	// Peers are patterns of path.Match for the DNS names and URIs in a peer's certificate
	// ("*.psidecar.svc", "spiffe://cluster/ns/*/sa/psidecar"). With patterns, one of the
	// peer's names must match one of them, and the peer needs no role. A peer that has roles,
	// or any peer where there are no patterns, must have the role of a proxy.
	Peers []string
}

// Identity is this proxy's certificate, and judges those of its peers. Files that change are
// read again. It is safe for concurrent use.
type Identity struct {
	*identity.Identity
	peers []string // see [Files.Peers]
}

// LoadIdentity reads the files and checks the patterns.
func LoadIdentity(f Files) (*Identity, error) {
	for _, p := range f.Peers {
		if _, err := path.Match(p, ""); err != nil {
			return nil, fmt.Errorf("peer pattern %q: %w", p, err)
		}
	}
	i, err := identity.Load(f.Files)
	if err != nil {
		return nil, err
	}
	return &Identity{i, f.Peers}, nil
}

// client returns the configuration for dialing, with the current certificate.
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

// server returns the configuration for accepting, with the current certificate. A client
// certificate is required; verify judges it.
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

// verify judges a peer: its chain, that its certificate is for this usage, that it speaks
// links, and its names and roles.
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
	if len(i.peers) > 0 && !i.known(leaf) {
		return reason.Errorf(reason.Identity, "the peer's certificate names %q and %v, which no pattern of peers (--tls-peer) matches", leaf.DNSNames, leaf.URIs)
	}
	// An authority signs for others than proxies too.
	if g := identity.GrantsOf(leaf); !g.Has(identity.ProxyRole) && (len(g) > 0 || len(i.peers) == 0) {
		return reason.Errorf(reason.Identity, "the peer: %w", identity.MissingRole(leaf, g, identity.ProxyRole, "--tls-peer"))
	}
	return nil
}

// known reports whether a name of the certificate matches a pattern.
func (i *Identity) known(leaf *x509.Certificate) bool {
	names := leaf.DNSNames
	for _, u := range leaf.URIs {
		names = append(names[:len(names):len(names)], u.String())
	}
	for _, name := range names {
		for _, pattern := range i.peers {
			if ok, err := path.Match(pattern, name); ok && err == nil {
				return true
			}
		}
	}
	return false
}

// Key identifies the public key of a certificate. The zero Key is that of a plain link.
type Key [sha256.Size]byte

// KeyOf returns the key of the peer's certificate. A certificate that is renewed with the
// same key has the same one.
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

// keyOf returns the key of the certificate that a configuration has.
func keyOf(c *tls.Config) (k Key) {
	if leaf, err := x509.ParseCertificate(c.Certificates[0].Certificate[0]); err == nil {
		k = sha256.Sum256(leaf.RawSubjectPublicKeyInfo)
	}
	return k
}

// prove returns by what a peer is known that claims an instance, which any other could claim as well:
// a digest of that, of the key of its certificate, and of this proxy's own. So nobody gets at what is
// kept for another peer, and both ends of a link change what they call each other at the same time
// when one of them gets a certificate with another key. Without TLS nothing is proven. A proxy that
// has dialed itself is called mine.
func prove(claimed, mine relay.Instance, theirs, own Key) (proven relay.Instance) {
	if own == (Key{}) || claimed == mine && theirs == own {
		return claimed
	}
	digest := sha256.Sum256(slices.Concat(claimed[:], theirs[:], own[:]))
	copy(proven[:], digest[:])
	return proven
}

// tlsError gives the error of a handshake its reason.
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

// alert returns err with a reason where the peer ended the connection by a TLS alert, and nil
// otherwise.
func alert(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		return reason.Errorf(reason.TLS, "the peer does not accept this proxy's certificate: %w", err)
	}
	return nil
}
