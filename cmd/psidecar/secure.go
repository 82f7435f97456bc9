package main

import (
	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/internal/control"
)

// plannerLink has the flags that say how a planner is reached, for parts that report to one and
// tools that ask one.
type plannerLink struct{ client.Planner }

// addFlags adds the flags; address is the default of --planner. The files of certificates are
// read when a connection is made, and again when they change.
func (l *plannerLink) addFlags(cmd *cobra.Command, address, usage string) {
	flags := cmd.Flags()
	flags.StringVar(&l.Address, "planner", address, usage)
	flags.StringVar(&l.Files.CA, "planner-ca", "", "PEM file with the CA certificates for the planner; enables TLS")
	flags.StringVar(&l.Files.Cert, "planner-cert", "", "PEM file with the client certificate for the planner, reloaded when it changes")
	flags.StringVar(&l.Files.Key, "planner-key", "", "PEM file with the private key of the certificate")
	flags.StringVar(&l.Name, "planner-name", "", "name required in the planner's certificate (default: the host of --planner, and the planner role)")
}

// addUsers adds --admin-uid. Agent, proxy and planner have it, each for its own sockets.
func addUsers(cmd *cobra.Command, users *control.Users) {
	cmd.Flags().UintSliceVar((*[]uint)(users), "admin-uid", nil, "UIDs that may make changes over Unix sockets and loopback, in addition to root and this process's user")
}

// addNames adds --http-name, the names for which the guard of a page lets requests pass; see
// [page.Guard].
func addNames(cmd *cobra.Command, names *[]string) {
	cmd.Flags().StringSliceVar(names, "http-name", nil, "additional host names accepted in HTTP requests, besides this host's addresses, localhost and its hostname; requests for other names are refused, as are cross-site requests")
}
