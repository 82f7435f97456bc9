package main

import (
	"net/http"
	"path/filepath"

	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/proxy"
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

// orders returns the server of the control socket. It takes changes of the proxy and, where
// called is not nil, names of keys for the agent in the same process, from users with the right
// to them.
func (f *proxyFlags) orders(p *proxy.Proxy, called *page.NameFile) *control.Server {
	if called == nil {
		return control.NewServer(p.ControlHandler(), f.users)
	}
	mux := http.NewServeMux()
	mux.Handle("/", p.ControlHandler())
	mux.Handle("/api/v1/names", page.NamesControl(called))
	return control.NewServer(mux, f.users)
}
