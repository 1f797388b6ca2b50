// Who hides what he has on a disk: each command writes 8 MiB that a walk over files does not come by, and then waits.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void say(const char *what) {
    puts(what);
    fflush(stdout);
}

static void fill(int fd) {
    static char block[1 << 20];
    memset(block, 7, sizeof block);
    for (int n = 0; n < 8; n++)
        if (write(fd, block, sizeof block) != sizeof block) fail("write");
    if (fsync(fd)) fail("fsync");
}

static int deleted(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0 || unlink(path)) fail(path);
    fill(fd);
    return fd;
}

static struct msghdr *message(int fd) {
    static char byte, room[CMSG_SPACE(sizeof(int))];
    static struct iovec data = {&byte, 1};
    static struct msghdr all;
    all = (struct msghdr){.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&all);
    *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    return &all;
}

// In the network namespace, which all containers of a Pod share.
static struct sockaddr_un name(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path + 1, "hand-over");
    return address;
}

// receive: has what somebody hands over.
static void receive(char **args) {
    (void)args;
    struct sockaddr_un at = name();
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (bind(fd, (void *)&at, sizeof at)) fail("bind");
    if (recvmsg(fd, message(-1), 0) < 0) fail("recvmsg");
    say("received");
}

// send FILE: hands a deleted file over, and keeps nothing of it.
static void send_it(char **args) {
    struct sockaddr_un to = name();
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0), file = deleted(args[0]);
    for (int tries = 0; connect(fd, (void *)&to, sizeof to); tries++) {
        if (tries > 500) fail("connect");
        usleep(20000);
    }
    if (sendmsg(fd, message(file), 0) < 0) fail("sendmsg");
    close(file), close(fd);
    say("sent");
}

static void *stay(void *nothing) {
    for (;;) pause();
    return nothing;
}

// headless FILE: has a deleted file open in a thread that outlives the first one.
static void headless(char **args) {
    pthread_t thread;
    deleted(args[0]);
    pthread_create(&thread, NULL, stay, NULL);
    say("headless");
    syscall(SYS_exit, 0);
}

static const struct { const char *name; void (*run)(char **); int args; } commands[] = {
    {"receive", receive, 0}, {"send", send_it, 1}, {"headless", headless, 1},
};

int main(int count, char **args) {
    for (unsigned i = 0; count > 1 && i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(args[1], commands[i].name) || count - 2 < commands[i].args) continue;
        commands[i].run(args + 2);
        for (;;) pause();
    }
    fprintf(stderr, "no such command, or too few arguments\n");
    return 2;
}
