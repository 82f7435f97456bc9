package discover

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/test/require"
)

// usual is what annotations may say by default.
var usual = policy.Allowed{policy.Job: true, policy.Codec: true}

func pod(uid, namespace, name string, labels map[string]string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: namespace, Name: name, Labels: labels}}
}

func TestSelected(t *testing.T) {
	in := map[string]string{"psidecar.io/job": "true"}
	for _, tc := range []struct {
		selector string
		want     map[string]bool
	}{
		{"", map[string]bool{"a": true, "b": true, "c": true, "": true, "unknown": true}},
		{"psidecar.io/job=true", map[string]bool{"a": true, "b": true, "c": false, "": false, "unknown": false}},
		{"psidecar.io/job notin (true)", map[string]bool{"a": true, "b": true, "c": true, "": false, "unknown": false}},
	} {
		p := require.Value(NewPods(&rest.Config{Host: "http://127.0.0.1:1"}, "node-1", tc.selector, usual))(t)
		p.pod(pod("a", "plain", "by-label", in))
		p.pod(pod("b", "jobs", "by-namespace", nil))
		p.pod(pod("c", "plain", "neither", nil))
		p.pod(pod("d", "jobs", "ended", in))
		p.namespace(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "jobs", Labels: in}})
		p.noPod(pod("d", "jobs", "ended", in))
		for uid, want := range tc.want {
			if p.Selected(uid) != want {
				t.Errorf("selector %q, pod %q: selected %v", tc.selector, uid, !want)
			}
		}
		if got, ok := p.Lookup("b"); !ok || got != (PodOnNode{"b", "jobs", "by-namespace", "node-1"}) {
			t.Errorf("pod b is %+v, %v", got, ok)
		}
		if _, ok := p.Lookup("d"); ok {
			t.Error("pod d is there still")
		}
	}
	if _, err := NewPods(&rest.Config{}, "node-1", "a=b=c", usual); err == nil {
		t.Error("a selector that is none")
	}
}

// A node says how fast its link is by an annotation, or a label; an invalid speed
// is none.
func TestLinkSpeedByAnnotationOrLabel(t *testing.T) {
	p := require.Value(NewPods(&rest.Config{Host: "http://127.0.0.1:1"}, "node-1", "", usual))(t)
	for _, c := range []struct {
		name                string
		annotations, labels map[string]string
		want                uint32
	}{
		{"neither", nil, nil, 0},
		{"a label", nil, map[string]string{LinkAnnotation: "10000"}, 10000},
		{"both", map[string]string{LinkAnnotation: "25000"}, map[string]string{LinkAnnotation: "10000"}, 25000},
		{"not a number", map[string]string{LinkAnnotation: "25G"}, nil, 0},
		{"negative", map[string]string{LinkAnnotation: "-1"}, nil, 0},
		{"more than there can be", map[string]string{LinkAnnotation: "4294967296"}, nil, 0},
		{"an annotation", map[string]string{LinkAnnotation: "40000"}, nil, 40000},
	} {
		p.ownNode(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Annotations: c.annotations, Labels: c.labels}})
		if got := p.Link(); got != c.want {
			t.Errorf("%s: %d Mbit/s, want %d", c.name, got, c.want)
		}
	}
	p.noNode(nil)
	if p.Link() != 0 {
		t.Error("a node that is gone has a link")
	}
}

// Where the API server fails, Run asks again until its context ends.
func TestNoAnswerOfTheAPIServerIsAskedAgain(t *testing.T) {
	asked := make(chan string, 64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.URL.Path + " " + r.URL.Query().Get("fieldSelector"):
		default:
		}
		http.Error(w, "no", http.StatusInternalServerError)
	}))
	defer server.Close()
	p := require.Value(NewPods(&rest.Config{Host: server.URL}, "node-1", "", usual))(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	times := map[string]int{}
	for times["/api/v1/pods spec.nodeName=node-1"] < 2 || times["/api/v1/nodes metadata.name=node-1"] < 2 {
		select {
		case which := <-asked:
			if times[which]++; len(times) > 2 {
				t.Fatalf("it asks for %v", times)
			}
		case err := <-ended:
			t.Fatalf("it has ended: %v", err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}
