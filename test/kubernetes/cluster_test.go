// Package kubernetes tests psidecar in a cluster whose API server, controllers
// and scheduler are Kubernetes' own, on loopback; its nodes are objects without
// machines. It is a module of its own, see go.mod; make test-kubernetes builds
// what it needs and runs it.
package kubernetes

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// cluster is a control plane that runs until the test ends.
type cluster struct {
	t      *testing.T
	dir    string
	config *rest.Config // of who may do everything
	client *kubernetes.Clientset
}

const adminToken = "everything"

// startCluster starts it. CONTROLPLANE names the program.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	program := os.Getenv("CONTROLPLANE")
	if program == "" {
		t.Fatal("CONTROLPLANE does not name the control plane's program: make test-kubernetes does")
	}
	c := &cluster{t: t, dir: t.TempDir()}
	ports := freePorts(t, 5)
	etcd, peers, api := "http://127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1], ports[2]
	key := c.file("accounts.key", privateKey(t))
	tokens := c.file("tokens.csv", []byte(adminToken+",admin,admin,system:masters\n"))
	c.config = &rest.Config{Host: "https://127.0.0.1:" + api, BearerToken: adminToken, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}
	kubeconfig := c.kubeconfig("admin", adminToken)
	c.start(program, "etcd", "--data-dir", filepath.Join(c.dir, "etcd"), "--unsafe-no-fsync", "--log-level", "error",
		"--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", peers,
		"--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
	c.start(program, "apiserver", "--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--secure-port", api,
		"--endpoint-reconciler-type", "none", "--cert-dir", filepath.Join(c.dir, "certs"), "--authorization-mode", "RBAC", "--token-auth-file", tokens,
		"--service-account-issuer", "https://cluster", "--service-account-key-file", key, "--service-account-signing-key-file", key,
		"--service-cluster-ip-range", "10.96.0.0/16")
	var err error
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		t.Fatal(err)
	}
	c.await("the API server", 2*time.Minute, func(ctx context.Context) error {
		return c.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	// No kubelet renews these nodes' state, and none is to be missed.
	c.start(program, "controllers", "--kubeconfig", kubeconfig, "--leader-elect=false", "--bind-address", "127.0.0.1", "--secure-port", ports[3],
		"--service-account-private-key-file", key, "--controllers", "*,-node-lifecycle-controller,-taint-eviction-controller")
	c.start(program, "scheduler", "--kubeconfig", kubeconfig, "--leader-elect=false", "--bind-address", "127.0.0.1", "--secure-port", ports[4])
	return c
}

func freePorts(t *testing.T, n int) (ports []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return ports
}

func privateKey(t *testing.T) []byte {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
}

func (c *cluster) file(name string, text []byte) string {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// start runs a part of the control plane until the test ends.
func (c *cluster) start(program, part string, args ...string) {
	c.t.Helper()
	c.run(exec.Command(program, append([]string{part}, args...)...), part)
}

// run runs a command until the test ends.
func (c *cluster) run(cmd *exec.Cmd, part string) {
	c.t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		cmd.Process.Kill() // has it ended, fine
		cmd.Wait()
		if text := out.Bytes(); c.t.Failed() {
			c.t.Logf("%s ends with: %s", part, text[max(0, len(text)-4000):])
		}
	})
}

// await tries until it succeeds.
func (c *cluster) await(what string, patience time.Duration, try func(context.Context) error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			c.t.Fatalf("waiting for %s: %v", what, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// kubeconfig writes one for a token.
func (c *cluster) kubeconfig(name, token string) string {
	c.t.Helper()
	k := clientcmdapi.NewConfig()
	k.Clusters["test"] = &clientcmdapi.Cluster{Server: c.config.Host, InsecureSkipTLSVerify: true}
	k.AuthInfos["user"] = &clientcmdapi.AuthInfo{Token: token}
	k.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "user"}
	k.CurrentContext = "test"
	path := filepath.Join(c.dir, name+".kubeconfig")
	if err := clientcmd.WriteToFile(*k, path); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// as returns a token of a service account, and a client that acts with it.
func (c *cluster) as(namespace, account string) (string, *kubernetes.Clientset) {
	c.t.Helper()
	r, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(c.t.Context(), account, &authv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	config := rest.CopyConfig(c.config)
	config.BearerToken = r.Status.Token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		c.t.Fatal(err)
	}
	return r.Status.Token, client
}

// addNode adds a node that is ready, as its kubelet would.
func (c *cluster) addNode(name string, taints ...corev1.Taint) {
	c.t.Helper()
	nodes := c.client.CoreV1().Nodes()
	_, err := nodes.Create(c.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
	}}}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	// Without "not ready", which admission has added. Controllers write to the
	// node too, so these are patches.
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi"), corev1.ResourcePods: resource.MustParse("110")}
	status := corev1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.Now()}}}
	for _, part := range []struct {
		name  string
		patch map[string]any
	}{
		{"", map[string]any{"spec": map[string]any{"taints": taints}}},
		{"status", map[string]any{"status": status}},
	} {
		text, err := json.Marshal(part.patch)
		if err != nil {
			c.t.Fatal(err)
		}
		var sub []string
		if part.name != "" {
			sub = []string{part.name}
		}
		if _, err := nodes.Patch(c.t.Context(), name, types.MergePatchType, text, metav1.PatchOptions{}, sub...); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *cluster) addNamespace(name string) {
	c.t.Helper()
	if _, err := c.client.CoreV1().Namespaces().Create(c.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.await("namespace "+name, time.Minute, func(ctx context.Context) error {
		_, err := c.client.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("its default account: %w", err)
		}
		return nil
	})
}
