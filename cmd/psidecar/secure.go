package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/psidecar/psidecar/planner/api/role"
	"github.com/psidecar/psidecar/proxy/link"
)

// plannerLink says how a planner is reached: without TLS, or with certificates
// on both sides.
type plannerLink struct {
	address string
	name    string // in the planner's certificate; empty: the address's host
	files   link.Files
	// own is the identity of a planner in this process, which is reached with
	// its own certificate.
	own *link.Identity
}

func (l *plannerLink) add(cmd *cobra.Command, address, usage string) {
	flags := cmd.Flags()
	flags.StringVar(&l.address, "planner", address, usage)
	flags.StringVar(&l.files.CA, "planner-ca", "", "PEM file with the certificates that the planner's is signed by; with it the planner is reached by TLS")
	flags.StringVar(&l.files.Cert, "planner-cert", "", "PEM file with the certificate to show to the planner, read again when it changes")
	flags.StringVar(&l.files.Key, "planner-key", "", "PEM file with its key")
	flags.StringVar(&l.name, "planner-name", "", "name that the planner's certificate must have; default: the host of --planner, and a planner's role")
}

// credentials returns what gRPC needs to reach the planner.
func (l *plannerLink) credentials() (credentials.TransportCredentials, error) {
	if l.own != nil {
		return clientCredentials(l.own, "", false), nil
	}
	i, err := identityOf(l.files, "--planner-")
	switch {
	case err != nil:
		return nil, err
	case i == nil && l.name != "":
		return nil, usagef("--planner-name needs --planner-ca, --planner-cert and --planner-key")
	case i == nil || strings.HasPrefix(l.address, "unix:"):
		return insecure.NewCredentials(), nil
	}
	name := l.name
	if name == "" {
		if name, _, err = net.SplitHostPort(l.address); err != nil {
			return nil, usagef("--planner %q: want host:port: %w", l.address, err)
		}
	}
	return clientCredentials(i, name, l.name == ""), nil
}

// target returns where the planner is: of commands that people give, by default,
// at its unix socket on this host where there is one.
func (l *plannerLink) target() string {
	if l.address != localPlanner {
		return l.address
	}
	if info, err := os.Stat(plannerSocket); err == nil && info.Mode()&os.ModeSocket != 0 {
		return "unix:" + plannerSocket
	}
	return plannerAddress
}

// identityOf reads the files that the flags PREFIXca, PREFIXcert and PREFIXkey
// name; nil where none is given.
func identityOf(f link.Files, prefix string) (*link.Identity, error) {
	if f.CA == "" && f.Cert == "" && f.Key == "" {
		return nil, nil
	}
	names := fmt.Sprintf("%[1]sca, %[1]scert and %[1]skey", prefix)
	if f.CA == "" || f.Cert == "" || f.Key == "" {
		return nil, usagef("%s go together", names)
	}
	i, err := link.LoadIdentity(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", names, err)
	}
	return i, nil
}

// clientCredentials are those of one who talks to a planner whose certificate
// has the name; empty: any that the CA has signed. With judged it must have a
// planner's role too.
func clientCredentials(i *link.Identity, name string, judged bool) credentials.TransportCredentials {
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
			if leaf := cs.PeerCertificates[0]; err == nil && judged && !role.Of(leaf).Has(role.Planner) {
				err = role.Missing(leaf, role.Of(leaf), role.Planner, "--planner-name")
			}
			return err
		},
	})
}

// serverCredentials are a planner's: who talks to it needs a certificate. What
// that allows is for package access to say.
func serverCredentials(i *link.Identity) credentials.TransportCredentials {
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
func verify(i *link.Identity, cs tls.ConnectionState, opts x509.VerifyOptions) error {
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
