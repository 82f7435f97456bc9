package main

import (
	"path/filepath"
)

// controlSocket is in the folder that an agent makes for the proxy's user.
const (
	// controlSocket is relative to --state-dir, which is private to the proxy's user.
	controlSocket      = "control.sock"
	usualControlSocket = "/run/psidecar/state/" + controlSocket
)

// controlPath returns the path of the control socket; empty if there is none.
func (f *proxyFlags) controlPath() string {
	if f.control == "" || filepath.IsAbs(f.control) {
		return f.control
	}
	return filepath.Join(f.Routing.Dir, f.control)
}
