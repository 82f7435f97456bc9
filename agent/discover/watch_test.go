package discover

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/psidecar/psidecar/test/require"
)

// lister is an API server with the objects of a path, as it lists them, and as what happens to
// them after.
type lister struct {
	t      *testing.T
	lists  map[string]metav1.PartialObjectMetadataList
	events map[string]chan string // of watches
}

func (l *lister) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if accept := r.Header.Get("Accept"); !strings.Contains(accept, "as=PartialObjectMetadata") {
		l.t.Errorf("%s is asked for as %q, with all that it contains", r.URL, accept)
	}
	q := r.URL.Query()
	path := r.URL.Path + " " + q.Get("fieldSelector")
	w.Header().Set("Content-Type", "application/json")
	if q.Get("watch") == "" {
		json.NewEncoder(w).Encode(l.lists[path])
		return
	}
	if q.Get("sendInitialEvents") == "true" { // as servers answer that do not stream lists
		w.WriteHeader(http.StatusUnprocessableEntity)
		json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid})
		return
	}
	w.WriteHeader(http.StatusOK)
	http.NewResponseController(w).Flush()
	for {
		select {
		case line := <-l.events[path]:
			w.Write([]byte(line + "\n"))
			http.NewResponseController(w).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

func metadataList(items ...*metav1.PartialObjectMetadata) metav1.PartialObjectMetadataList {
	list := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
	for _, o := range items {
		o.TypeMeta = metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}
		list.Items = append(list.Items, *o)
	}
	return list
}

// What is listed is known, and so is what changes after.
func TestPodsAreListedAndWatched(t *testing.T) {
	mine := pod("a", "ads", "listed", map[string]string{"team": "x"})
	mine.Annotations = map[string]string{"psidecar.io/job": "ctr", "else": "x"}
	node := pod("n", "", "node-1", nil)
	node.Annotations = map[string]string{LinkAnnotation: "25000"}
	const pods = "/api/v1/pods spec.nodeName=node-1"
	l := &lister{t: t, lists: map[string]metav1.PartialObjectMetadataList{
		pods:                                 metadataList(mine),
		"/api/v1/nodes metadata.name=node-1": metadataList(node),
		"/api/v1/namespaces ":                metadataList(pod("s", "", "jobs", map[string]string{"team": "x"})),
	}, events: map[string]chan string{pods: make(chan string)}}
	server, transport := httptest.NewServer(l), &http.Transport{}
	defer func() { transport.CloseIdleConnections(); server.Close() }()
	p := require.Value(NewPods(&rest.Config{Host: server.URL, Transport: transport, QPS: -1}, "node-1", "team=x", usual))(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	await := func(what string, so func() bool) {
		t.Helper()
		require.Await(t, what, func() error {
			if so() {
				return nil
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			return fmt.Errorf("pods %+v, namespaces %v, link %d", p.pods, p.namespaces, p.link)
		})
	}
	await("the listed pod", func() bool { return p.Selected("a") })
	if said, _ := p.Said("a"); said.Settings["job"] != "ctr" || said.Namespace != "ads" {
		t.Errorf("the pod says %+v", said)
	}
	await("the node's link", func() bool { return p.Link() == 25000 })
	send := func(kind string, o *metav1.PartialObjectMetadata) {
		o.TypeMeta, o.ResourceVersion = mine.TypeMeta, "2"
		line := require.Value(json.Marshal(map[string]any{"type": kind, "object": o}))(t)
		select {
		case l.events[pods] <- string(line):
		case <-ctx.Done():
			t.Fatal("nobody watches the pods")
		}
	}
	send("ADDED", pod("b", "jobs", "added", nil))
	await("the added pod, by its namespace's label", func() bool { return p.Selected("b") })
	if got, _ := p.Lookup("b"); got != (PodOnNode{"b", "jobs", "added", "node-1"}) {
		t.Errorf("the pod is %+v", got)
	}
	send("MODIFIED", pod("a", "ads", "listed", nil))
	await("the pod without its label", func() bool { return !p.Selected("a") })
	send("DELETED", pod("b", "jobs", "added", nil))
	await("the pod that is gone", func() bool { _, there := p.Lookup("b"); return !there })
}
