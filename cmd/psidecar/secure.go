package main

import (
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/psidecar/psidecar/internal/identity"
)

// plannerLink says how a planner is reached: without TLS, or with certificates
// on both sides.
type plannerLink struct {
	address string
	name    string // in the planner's certificate; empty: the address's host
	files   identity.Files
	// own is the identity of a planner in this process, which is reached with
	// its own certificate.
	own *identity.Identity
}

func (l *plannerLink) addFlags(cmd *cobra.Command, address, usage string) {
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
		return identity.ClientCredentials(l.own, "", false), nil
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
	return identity.ClientCredentials(i, name, l.name == ""), nil
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
func identityOf(f identity.Files, prefix string) (*identity.Identity, error) {
	if f.CA == "" && f.Cert == "" && f.Key == "" {
		return nil, nil
	}
	names := fmt.Sprintf("%[1]sca, %[1]scert and %[1]skey", prefix)
	if f.CA == "" || f.Cert == "" || f.Key == "" {
		return nil, usagef("%s go together", names)
	}
	i, err := identity.Load(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", names, err)
	}
	return i, nil
}
