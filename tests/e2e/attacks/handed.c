// Descriptors that are handed on: they outlive the Pod that made them, and count for its users until somebody takes them.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

// As many as one message may have.
#define MOST 253

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int send_all(int socket, const int *fds, size_t count) {
    static char byte, room[CMSG_SPACE(MOST * sizeof(int))];
    struct iovec data = {&byte, 1};
    struct msghdr all = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room,
                         .msg_controllen = CMSG_SPACE(count * sizeof *fds)};
    struct cmsghdr *head = CMSG_FIRSTHDR(&all);
    *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(count * sizeof *fds), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(head), fds, count * sizeof *fds);
    return sendmsg(socket, &all, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static struct sockaddr_un at(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    return address;
}

// flood: sends descriptors to nobody until the kernel lets this user send no more, and keeps them on their way.
static void flood(char **args) {
    (void)args;
    struct rlimit most;
    if (getrlimit(RLIMIT_NOFILE, &most)) fail("getrlimit");
    most.rlim_cur = most.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &most)) fail("setrlimit");
    int null = open("/dev/null", O_RDONLY), fds[MOST], pair[2];
    for (int n = 0; n < MOST; n++) fds[n] = null;
    long sent = 0;
    for (int pairs = 0; pairs < 256; pairs++) {
        if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair)) fail("socketpair");
        while (send_all(pair[0], fds, MOST) > 0) sent += MOST;
        if (errno == ETOOMANYREFS) break;
        if (errno != EAGAIN && errno != ENOBUFS) fail("sendmsg");
    }
    printf("%s: %ld descriptors are on their way\n", errno == ETOOMANYREFS ? "full" : "not full", sent);
    fflush(stdout);
    pause();
}

// take PATH: has what is handed over there, and says once a second how much of memory or disk that holds.
static void take(char **args) {
    struct sockaddr_un own = at(args[0]);
    int door = socket(AF_UNIX, SOCK_STREAM, 0);
    unlink(args[0]);
    if (bind(door, (void *)&own, sizeof own) || listen(door, 4)) fail("listen");
    puts("listening");
    fflush(stdout);
    char byte, room[CMSG_SPACE(sizeof(int))];
    struct iovec data = {&byte, 1};
    struct msghdr all = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    int peer = accept(door, NULL, NULL), file;
    if (peer < 0 || recvmsg(peer, &all, 0) <= 0) fail("recvmsg");
    memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&all)), sizeof file);
    // Who has handed it over may go now.
    if (write(peer, "x", 1) != 1) fail("write");
    for (;; sleep(1)) {
        struct stat found;
        if (fstat(file, &found)) fail("fstat");
        printf("has %lld blocks\n", (long long)found.st_blocks);
        fflush(stdout);
    }
}

// give PATH FILE MIB: hands a file of so many MiB over there, and ends.
static void give(char **args) {
    static char block[1 << 20];
    struct sockaddr_un to = at(args[0]);
    int file = open(args[1], O_RDWR | O_CREAT | O_EXCL, 0600), peer = socket(AF_UNIX, SOCK_STREAM, 0);
    if (file < 0) fail(args[1]);
    memset(block, 7, sizeof block);
    for (int n = atoi(args[2]); n > 0; n--)
        if (write(file, block, sizeof block) != sizeof block) fail("write");
    char byte;
    if (connect(peer, (void *)&to, sizeof to)) fail("connect");
    if (send_all(peer, &file, 1) <= 0 || read(peer, &byte, 1) != 1) fail("hand over");
    puts("given");
}

static const struct { const char *name; void (*run)(char **); int args; } commands[] = {
    {"flood", flood, 0}, {"take", take, 1}, {"give", give, 3},
};

int main(int count, char **args) {
    for (unsigned i = 0; count > 1 && i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(args[1], commands[i].name) || count - 2 < commands[i].args) continue;
        commands[i].run(args + 2);
        return 0;
    }
    fprintf(stderr, "no such command, or too few arguments\n");
    return 2;
}
