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
	controlSocket      = "control.sock"
	usualControlSocket = "/run/psidecar/state/" + controlSocket
)

// controlPath is where the control socket is; empty: there is none.
func (f *proxyFlags) controlPath() string {
	if f.control == "" || filepath.IsAbs(f.control) {
		return f.control
	}
	return filepath.Join(f.Routing.Dir, f.control)
}

// orders takes changes of the proxy from users with the right to them; and, for an
// agent in this process, names of keys.
func (f *proxyFlags) orders(p *proxy.Proxy, called *page.NameFile) *control.Server {
	if called == nil {
		return control.NewServer(p.ControlHandler(), f.users)
	}
	mux := http.NewServeMux()
	mux.Handle("/", p.ControlHandler())
	mux.Handle("/api/v1/names", page.NamesControl(called))
	return control.NewServer(mux, f.users)
}
