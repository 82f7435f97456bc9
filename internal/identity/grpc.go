package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"google.golang.org/grpc/credentials"
)

// ClientCredentials are those of a client of a planner. The planner's certificate must have the
// given name; with an empty name, any certificate signed by the CA is accepted. With judged it
// must have the planner's role too.
func ClientCredentials(i *Identity, name string, judged bool) credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13,
		// The roots may change while this lives. verify makes all the checks that are skipped
		// here.
		InsecureSkipVerify: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			cert, _ := i.Current()
			return cert, nil
		},
		VerifyConnection: func(cs tls.ConnectionState) error {
			err := verify(i, cs, x509.VerifyOptions{DNSName: name, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
			if leaf := cs.PeerCertificates[0]; err == nil && judged && !GrantsOf(leaf).Has(PlannerRole) {
				err = MissingRole(leaf, GrantsOf(leaf), PlannerRole, "--planner-name")
			}
			return err
		},
	})
}

// ServerCredentials are those of a planner: clients need a certificate. What a certificate
// allows is decided by package control.
func ServerCredentials(i *Identity) credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: tls.RequireAnyClientCert, // judged by verify
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			cert, _ := i.Current()
			return cert, nil
		},
		VerifyConnection: func(cs tls.ConnectionState) error {
			return verify(i, cs, x509.VerifyOptions{KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		},
		SessionTicketsDisabled: true, // a resumed session would not be judged by new roots
	})
}

// verify checks the chain of a peer's certificate against the identity's present roots.
func verify(i *Identity, cs tls.ConnectionState, opts x509.VerifyOptions) error {
	if len(cs.PeerCertificates) == 0 {
		return errors.New("the peer has no certificate")
	}
	_, opts.Roots = i.Current()
	opts.Intermediates = x509.NewCertPool()
	for _, c := range cs.PeerCertificates[1:] {
		opts.Intermediates.AddCert(c)
	}
	if _, err := cs.PeerCertificates[0].Verify(opts); err != nil {
		return fmt.Errorf("the peer's certificate: %w", err)
	}
	return nil
}
