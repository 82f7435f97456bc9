package owners

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/require"
)

const (
	namespace = "ads"
	patience  = 10 * time.Minute
	// apiPort is where each host's loopback has the API server.
	apiPort = "6443"
)

// cluster is one with an API server, controllers and a scheduler, as its administrator.
type cluster struct {
	t      *testing.T
	client dynamic.Interface
	server string // host:port
}

// newCluster also has the agents of the test act with the rights that an agent has.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	agents := require.Asked(t, "PSIDECAR_TEST_AGENT_KUBECONFIG", "an agent's kubeconfig, and KUBECONFIG to an administrator's, for a cluster with nodes node-1 and node-2 (make test-kubernetes)")
	config := require.Value(clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG")))(t)
	c := &cluster{t: t}
	client := require.Value(rest.HTTPClientFor(config))(t)
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(client.Transport) })
	c.client = require.Value(dynamic.NewForConfigAndClient(config, client))(t)
	at := require.Value(url.Parse(config.Host))(t)
	c.server = at.Host
	mine := require.Value(clientcmd.LoadFromFile(agents))(t)
	for _, server := range mine.Clusters {
		server.Server = "https://127.0.0.1:" + apiPort
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*mine, path))
	t.Setenv("KUBECONFIG", path)
	c.add("{apiVersion: v1, kind: Namespace, metadata: {name: " + namespace + "}}")
	return c
}

// forward has the API server be at a host's loopback.
func (c *cluster) forward(h *hosts.Host) {
	c.t.Helper()
	l := require.Value(h.Listen(c.t.Context(), "tcp", "127.0.0.1:"+apiPort))(c.t)
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { carry(ctx, near, c.server) })
		}
	})
	c.t.Cleanup(func() {
		cancel()
		l.Close()
		all.Wait()
	})
}

// carry copies both ways until either ends.
func carry(ctx context.Context, near net.Conn, to string) {
	defer near.Close()
	far, err := new(net.Dialer).DialContext(ctx, "tcp", to)
	if err != nil {
		return
	}
	defer far.Close()
	both, end := context.WithCancel(ctx)
	defer end()
	var all sync.WaitGroup
	for _, c := range [][2]net.Conn{{near, far}, {far, near}} {
		all.Go(func() {
			defer end()
			io.Copy(c[0], c[1]) // which end breaks off, and how, is for them to see
		})
	}
	<-both.Done()
	near.Close()
	far.Close()
	all.Wait()
}

func (c *cluster) resource(group, version, kind string) dynamic.NamespaceableResourceInterface {
	r, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Group: group, Version: version, Kind: kind})
	return c.client.Resource(r)
}

// add makes an object out of YAML, in the namespace where it has no other place.
func (c *cluster) add(text string) *unstructured.Unstructured {
	c.t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096).Decode(&o.Object); err != nil {
		c.t.Fatalf("%v:\n%s", err, text)
	}
	kind := o.GroupVersionKind()
	all := c.resource(kind.Group, kind.Version, kind.Kind)
	in := dynamic.ResourceInterface(all)
	if kind.Kind != "Namespace" && kind.Kind != "CustomResourceDefinition" {
		in = all.Namespace(namespace)
	}
	var made *unstructured.Unstructured
	c.await("the API server to take a "+kind.Kind, func() (err error) { // one whose kind was defined just now
		made, err = in.Create(c.t.Context(), o, metav1.CreateOptions{FieldValidation: "Strict"})
		return err
	})
	return made
}

// await tries until it succeeds.
func (c *cluster) await(what string, try func() error) {
	c.t.Helper()
	require.Await(c.t, what, try)
}

// template is a pod's: the scheduler puts two with one name on two nodes.
func template(name string, labelled bool, annotations map[string]string) string {
	labels := "app: " + name
	if labelled {
		labels += `, psidecar.io/job: "true"`
	}
	var said []string
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		said = append(said, fmt.Sprintf("psidecar.io/%s: %q", key, annotations[key]))
	}
	return fmt.Sprintf(`{metadata: {labels: {%s}, annotations: {%s}}, spec: {restartPolicy: %%s, containers: [{name: job, image: job}], topologySpreadConstraints: [
		{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: %s}}}]}}`,
		labels, strings.Join(said, ", "), name)
}

// A pod is one that the scheduler has put on a node.
type pod struct{ name, uid string }

// pods waits for two pods of that name, one on each node, and returns them by node.
func (c *cluster) pods(name string) map[string]pod {
	c.t.Helper()
	on := map[string]pod{}
	c.await("pods of "+name+" on two nodes", func() error {
		all, err := c.resource("", "v1", "Pod").Namespace(namespace).List(c.t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil {
			return err
		}
		for _, p := range all.Items {
			if node, _, _ := unstructured.NestedString(p.Object, "spec", "nodeName"); node != "" {
				on[node] = pod{p.GetName(), string(p.GetUID())}
			}
		}
		if len(on) != 2 {
			return fmt.Errorf("%d pods, on nodes %q", len(all.Items), slices.Sorted(maps.Keys(on)))
		}
		return nil
	})
	return on
}

// told waits until events on a pod, of a kind of ours, say all of these, and nothing else
// is said of it.
func (c *cluster) told(p pod, says ...string) {
	c.t.Helper()
	c.await("events on "+p.name, func() error {
		all, err := c.resource("", "v1", "Event").Namespace(namespace).List(c.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + p.uid + ",reason=PsidecarAnnotation"})
		if err != nil {
			return err
		}
		var told []string
		for _, e := range all.Items {
			message, _, _ := unstructured.NestedString(e.Object, "message")
			told = append(told, message)
		}
		for _, part := range says {
			if !slices.ContainsFunc(told, func(text string) bool { return strings.Contains(text, part) }) {
				return fmt.Errorf("none says %q: %q", part, told)
			}
		}
		if len(told) != len(says) {
			return fmt.Errorf("they are %q", told)
		}
		return nil
	})
}
