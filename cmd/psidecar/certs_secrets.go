package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/internal/identity"
)

// certSecrets are Secrets of Kubernetes that certs keeps: the CA, with its key, and one
// certificate.
type certSecrets struct{ ca, cert string }

// issue issues a certificate for s, by the CA of its Secret, into the folder out and into its
// own Secret. A certificate that is there stays while it is of that CA, has these names and
// roles, and is valid for a third of valid. Of two processes that both make a CA one fails, and
// finds the other's when it is run again.
func (c certSecrets) issue(ctx context.Context, out string, s identity.Subject, valid, authority time.Duration) (said string, err error) {
	secrets, err := discover.OpenSecrets()
	if err != nil {
		return "", err
	}
	held, err := secrets.Read(ctx, c.ca)
	if err != nil {
		return "", err
	}
	caFiles := []string{identity.CAFile, identity.CAKeyFile}
	if held != nil {
		if err := os.MkdirAll(out, 0o700); err != nil {
			return "", err
		}
		for _, name := range caFiles {
			if err := os.WriteFile(filepath.Join(out, name), held[name], 0o600); err != nil {
				return "", err
			}
		}
	}
	ca, err := identity.OpenAuthority(out, authority)
	if err != nil {
		return "", fmt.Errorf("CA in Secret %s: %w", c.ca, err)
	}
	if held == nil {
		data, err := readFiles(out, caFiles)
		if err != nil {
			return "", err
		}
		if err := secrets.Create(ctx, c.ca, "Opaque", data); err != nil {
			return "", err
		}
	}
	old, err := secrets.Read(ctx, c.cert)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(out, identity.CAFile))
	if err != nil {
		return "", err
	}
	if isCurrent(old[identity.CertFile], text, s, time.Now().Add(valid/3)) {
		return fmt.Sprintf("Secret %s stays", c.cert), nil
	}
	dir := filepath.Join(out, s.Folder)
	if err := ca.Issue(dir, s.Names, s.Grants, valid); err != nil {
		return "", err
	}
	data, err := readFiles(dir, []string{identity.CAFile, identity.CertFile, identity.KeyFile})
	if err != nil {
		return "", err
	}
	write := secrets.Replace
	if old == nil {
		write = secrets.Create
	}
	return fmt.Sprintf("Secret %s: for %v, as %s, valid for %s", c.cert, s.Names, s.Grants, valid), write(ctx, c.cert, "kubernetes.io/tls", data)
}

func readFiles(dir string, names []string) (map[string][]byte, error) {
	all := map[string][]byte{}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		all[name] = text
	}
	return all, nil
}

// isCurrent reports whether a certificate is signed by a CA, is for s, and is valid until then.
func isCurrent(cert, ca []byte, s identity.Subject, until time.Time) bool {
	parse := func(text []byte) *x509.Certificate {
		block, _ := pem.Decode(text)
		if block == nil {
			return nil
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil
		}
		return c
	}
	have, by := parse(cert), parse(ca)
	if have == nil || by == nil || have.CheckSignatureFrom(by) != nil || have.NotAfter.Before(until) {
		return false
	}
	for _, name := range s.Names {
		if have.VerifyHostname(name) != nil {
			return false
		}
	}
	grants := identity.GrantsOf(have)
	return len(grants) == len(s.Grants) && !slices.ContainsFunc(s.Grants, func(g identity.Grant) bool { return !slices.Contains(grants, g) })
}
