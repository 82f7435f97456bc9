package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"google.golang.org/grpc/credentials"
)

// ClientCredentials are those of a client of a planner whose certificate has the
// name; empty: any that the CA has signed. With judged it must have a planner's
// role too.
func ClientCredentials(i *Identity, name string, judged bool) credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13,
		// The roots may change while this lives; verify does all that is
		// skipped here.
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

// ServerCredentials are a planner's: its clients need a certificate. What that
// allows is for package control to say.
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

// verify checks the chain of a peer's certificate by the identity's roots.
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
