package control

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/psidecar/psidecar/internal/handshake"
)

// A Server serves an HTTP handler to trusted users at a [Listener], and logs changes with the
// user who made them. It is a prometheus.Collector.
type Server struct {
	users   Users
	handler http.Handler
	opening *handshake.Set // connections without a request in progress: every user may connect
	refused atomic.Uint64
	changes atomic.Uint64
	warned  atomic.Int64 // when a refusal was last logged, in seconds since 1970
}

// NewServer returns a server of h for these users.
func NewServer(h http.Handler, users Users) *Server {
	return &Server{handler: h, users: users, opening: handshake.New(handshake.Affordable(openings), openings)}
}

// openings is the bound on connections without a request in progress in total. A unix socket is a
// single source, which gets half of it.
const openings = 512

// userKey is the context key of a connection's user.
type userKey struct{}

// Serve serves at the listener until ctx ends, and closes it. Requests in progress are cut off
// then.
func (s *Server) Serve(ctx context.Context, l *Listener) error {
	h := &http.Server{
		Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, userKey{}, c.(*Conn).UID)
		},
	}
	handshake.BoundHTTP(h, s.opening)
	stop := context.AfterFunc(ctx, func() { h.Close() })
	defer stop()
	if err := h.Serve(l); ctx.Err() == nil {
		return fmt.Errorf("serving at %s: %w", l.path, err)
	}
	return nil
}

// ServeAt serves at the unix socket of a path until ctx ends, as soon as the socket can be
// opened; with an empty path it returns at once.
func (s *Server) ServeAt(ctx context.Context, path string) error {
	if path == "" {
		return nil
	}
	l := Await(ctx.Done(), path, func(err error) { slog.Info("control socket not available yet", "error", err) })
	if l == nil {
		return nil
	}
	return s.Serve(ctx, l)
}

// MaxBody bounds the body of a request, in bytes: enough for the largest file of key names.
const MaxBody = 16 << 20

// serve checks the user of a request. Requests other than GET are logged as changes, with their
// result.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	uid, ok := r.Context().Value(userKey{}).(int)
	if !ok || !s.users.Trusted(uid) {
		s.refused.Add(1)
		level := slog.LevelDebug
		if now := time.Now().Unix(); s.warned.Swap(now) != now { // once a second
			level = slog.LevelWarn
		}
		slog.Log(r.Context(), level, "control request refused", "uid", uid, "method", r.Method, "path", r.URL.Path)
		http.Error(w, fmt.Sprintf("user %d is not authorized: this socket is for %s; see --admin-uid", uid, s.users), http.StatusForbidden)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, MaxBody)
	if r.Method == http.MethodGet {
		s.handler.ServeHTTP(w, r)
		return
	}
	s.changes.Add(1)
	noted := &noting{ResponseWriter: w, code: http.StatusOK}
	s.handler.ServeHTTP(noted, r)
	slog.Info("change", "by", fmt.Sprintf("user %d at the control socket", uid), "method", r.Method, "path", r.URL.Path, "status", noted.code)
}

// noting records the status of an answer.
type noting struct {
	http.ResponseWriter
	code int
}

func (n *noting) WriteHeader(code int) {
	n.code = code
	n.ResponseWriter.WriteHeader(code)
}

var (
	descRefused = prometheus.NewDesc("psidecar_control_refused_total", "Requests at the control socket by unauthorized users.", nil, nil)
	descChanges = prometheus.NewDesc("psidecar_control_changes_total", "Requests at the control socket that make changes; each is logged with its user.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Server) Describe(out chan<- *prometheus.Desc) {
	out <- descRefused
	out <- descChanges
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.MustNewConstMetric(descRefused, prometheus.CounterValue, float64(s.refused.Load()))
	out <- prometheus.MustNewConstMetric(descChanges, prometheus.CounterValue, float64(s.changes.Load()))
}

// Client returns an HTTP client that connects to the socket, whatever host a URL names.
func Client(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
}
